"""How much memory a model needs, from its config and headers alone. Needs no torch."""

from blockdiff.planning.model import PlannedModel, read_model
from blockdiff.planning.plan import DTYPES, Demand, Plan, Setup, make_plan

__all__ = ["DTYPES", "Demand", "Plan", "PlannedModel", "Setup", "make_plan", "read_model"]
