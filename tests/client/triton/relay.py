"""Python-backend model that repeats its inputs as outputs: the last step of a small ensemble."""

import triton_python_backend_utils as pb_utils

NAMES = (
    "text_output",
    "block_index",
    "denoise_steps_used",
    "num_output_tokens",
    "is_final",
    "finish_reason",
)


class TritonPythonModel:
    def execute(self, requests):
        return [self._repeat(request) for request in requests]

    def _repeat(self, request):
        tensors = [
            pb_utils.Tensor(
                name, pb_utils.get_input_tensor_by_name(request, f"in_{name}").as_numpy()
            )
            for name in NAMES
        ]
        return pb_utils.InferenceResponse(output_tensors=tensors)
