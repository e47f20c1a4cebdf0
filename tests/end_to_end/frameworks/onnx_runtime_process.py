"""ONNX Runtime in a process of its own, because on some graphs with tensors without elements it ends its process or never returns.

Models and tensors are pickled through the process's standard input and output. A process that died is replaced for the next model.
"""

import pickle
import signal
import subprocess
import sys

# Processor seconds for one model, after which the process is killed.
LIMIT_S = 10


class Process:
    """The process, started for its first model, and how often it died."""

    def __init__(self):
        self.deaths = 0
        self._process = None

    def run(self, model, feed, names):
        """The named outputs of a model, all by default, by name; None if ONNX Runtime refuses the model or its inputs, or dies."""
        if self._process is None:
            command = [sys.executable, __file__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        source, target = self._process.stdout, self._process.stdin
        assert source and target
        try:
            pickle.dump((model, feed, names), target)
            target.flush()
            return pickle.load(source)
        except (BrokenPipeError, EOFError):
            self._process.communicate()
            self._process = None
            self.deaths += 1
            return None


def _run(onnxruntime, model, feed, names):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = names or [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feed), strict=True))
    except Exception:  # its exceptions have no common class
        return None


def _serve():
    import onnxruntime

    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        # Nothing handles the timer's signal, so that it ends the process.
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        outputs = _run(onnxruntime, *request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(outputs, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
