"""The benchmarks' own logic, on models of no size."""
