"""Runs a command that holds an exclusive lock on a file until it ends, however it ends.

Usage: with_lock.py FILE COMMAND [ARGUMENT...]
"""

import fcntl
import os
import sys

file, *command = sys.argv[1:]
lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("mainspring: waiting for another start to finish its set-up", file=sys.stderr)
    fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.execvp(command[0], command)
