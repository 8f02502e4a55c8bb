"""Everything that knows Triton Inference Server: one class per model of the repository.

``pb_utils`` (the module ``triton_python_backend_utils``) exists only inside a Triton stub process,
so every class here is given it instead of importing it.
"""
