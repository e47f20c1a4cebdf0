"""Sends the words of a text one by one."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        # Each text has a thread of its own, so the next request need not wait until this one's last word is sent.
        for request in requests:
            threading.Thread(target=send_words, args=(request, request.get_response_sender())).start()


def send_words(request, sender):
    try:
        text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
        for word in text.split():
            if request.is_cancelled():
                break
            output = pb_utils.Tensor("word", np.array([word.encode()], np.object_))
            sender.send(pb_utils.InferenceResponse([output]))
    except UnicodeDecodeError as error:
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"the text is not UTF-8: {error}")))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
