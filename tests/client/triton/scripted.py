"""Python-backend model that plays the script in its `text_input` (JSON list of steps).

Steps: {"text", "index", "final", "flag"} sends a response; {"sleep": s}; {"error", "code"};
{"flag_only"}; {"timeout"} sends the request's own timeout as text; {"watch": PATH} waits until the
request is cancelled and then writes that to PATH. A script that starts with {"block"} runs inside
execute, so that later requests wait in Triton's queue.
"""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            steps = json.loads(text.reshape(-1)[0])
            arguments = (request, request.get_response_sender(), steps)
            if "block" in steps[0]:
                play(*arguments)
            else:
                threading.Thread(target=play, args=arguments).start()


def play(request, sender, steps):
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    for step in steps:
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "watch" in step:
            watch(request, step["watch"])
            sender.send(flags=final)
            return
        elif "error" in step:
            error = pb_utils.TritonError(step["error"], getattr(pb_utils.TritonError, step["code"]))
            sender.send(pb_utils.InferenceResponse(error=error), flags=final)
            return
        elif "flag_only" in step:
            sender.send(flags=final)
        elif "timeout" in step:
            step["text"] = str(request.timeout())
        if "text" in step:
            sender.send(response(step), flags=final if step.get("flag") else 0)


def watch(request, path):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if request.is_cancelled():
            with open(path, "w") as file:
                file.write("cancelled")
            return
        time.sleep(0.02)


def response(step):
    is_final = bool(step.get("final"))
    tensors = [
        pb_utils.Tensor("text_output", np.array([[step["text"].encode()]], dtype=object)),
        pb_utils.Tensor("block_index", np.array([[step.get("index", 0)]], dtype=np.int32)),
        pb_utils.Tensor("denoise_steps_used", np.array([[2]], dtype=np.int32)),
        pb_utils.Tensor("num_output_tokens", np.array([[4]], dtype=np.int32)),
        pb_utils.Tensor("is_final", np.array([[is_final]], dtype=bool)),
        pb_utils.Tensor("finish_reason", np.array([[b"stop" if is_final else b""]], dtype=object)),
    ]
    return pb_utils.InferenceResponse(output_tensors=tensors)
