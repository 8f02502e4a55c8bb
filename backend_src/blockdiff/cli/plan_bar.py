"""A picture of a plan: one device's memory as a bar. Knows letters and colours, no formulas."""

from rich.text import Text

from blockdiff.planning import Plan
from blockdiff.planning.units import GIB

_WIDTH = 64
# letter in the bar, colour, name
_KINDS = {
    "weights": ("W", "blue"),
    "kv_cache": ("K", "green"),
    "recurrent_state": ("S", "cyan"),
    "round": ("A", "yellow"),
    "overhead": ("R", "magenta"),
}
_NAMES = {"kv_cache": "keys and values", "recurrent_state": "states", "overhead": "runtime"}


def memory_bar(made: Plan) -> list[Text]:
    """The bar, scaled so that what is needed and the whole device fit in, and its legend.

    Letters are kinds of memory, dots are free, ``|`` is where the headroom begins, ``]`` where the
    device ends.
    """
    demand, setup = made.demand, made.setup
    sizes = {
        "weights": demand.weights,
        "kv_cache": demand.kv_cache,
        "recurrent_state": demand.recurrent_state + demand.kept_states,
        "round": max(demand.activations, demand.sampling),
        "overhead": demand.overhead,
    }
    scale = _WIDTH / max(setup.device_memory, demand.total)
    bar, end = Text("["), 0
    for kind, size in sizes.items():
        letter, colour = _KINDS[kind]
        start, end = end, end + size
        bar.append(letter * (round(end * scale) - round(start * scale)), style=colour)
    bar.append("." * (_WIDTH - round(end * scale)))
    plain = bar.plain
    # later marks first, so that places do not move
    for mark, place in (("]", setup.device_memory), ("|", setup.usable)):
        at = 1 + round(place * scale)
        bar = bar[:at] + Text(mark, style="bold") + bar[at:]
    assert len(bar.plain) == len(plain) + 2
    shown = [f"{_KINDS[k][0]} {_NAMES.get(k, k)}" for k, size in sizes.items() if size]
    legend = f" {', '.join(shown)}; | headroom begins, ] device ends"
    return [bar, Text(f"{legend} ({setup.device_memory / GIB:.1f} GiB)")]
