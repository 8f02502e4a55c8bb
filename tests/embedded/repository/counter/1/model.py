"""A decoupled model that counts: COUNT responses, DELAY seconds apart, from its own thread."""

import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.running = 0
        path = os.environ.get("BLOCKDIFF_HEARTBEAT_FILE")
        if path:
            threading.Thread(target=self._beat, args=(path,), daemon=True).start()

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            delay = float(pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()[0])
            sender = request.get_response_sender()
            self.running += 1
            threading.Thread(target=self._count, args=(sender, count, delay)).start()
        return None

    def _count(self, sender, count, delay):
        for index in range(count):
            time.sleep(delay)
            tensor = pb_utils.Tensor("INDEX", np.array([index], np.int32))
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if index == count - 1 else 0
            sender.send(pb_utils.InferenceResponse([tensor]), flags=final)
        self.running -= 1

    def _beat(self, path):
        # The file "PATH.stall" stands for an engine that no longer makes rounds.
        while not os.path.exists(path + ".stall"):
            with open(path + ".new", "w") as handle:
                beat = {"pid": os.getpid(), "monotonic": time.monotonic()}
                json.dump({**beat, "running": self.running}, handle)
            os.replace(path + ".new", path)
            time.sleep(0.2)
