# Runs a program, and kills it with everything that it started once the server that started this has ended.
import os
import signal
import subprocess
import sys
import threading
import time

server = int(sys.argv[1])


def watch():
    while os.getppid() == server:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


threading.Thread(target=watch, daemon=True).start()
try:
    status = subprocess.call(sys.argv[2:])
except OSError as error:
    sys.exit("cannot run %s: %s" % (sys.argv[2], error.strerror))
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
