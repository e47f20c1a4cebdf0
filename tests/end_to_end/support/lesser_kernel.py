"""Starts a program for which the kernel lacks a feature of sandboxes: `lesser_kernel.py landlock|seccomp PROGRAM [ARGUMENT...]`.

A filter of system calls answers those that belong to the feature as a kernel without it would. Like a container's profile, it holds for
all processes that the program starts.
"""

import ctypes
import errno
import os
import sys

# By their numbers on x86-64: landlock_create_ruleset, landlock_add_rule and landlock_restrict_self, and seccomp.
CALLS = {"landlock": ([444, 445, 446], errno.ENOSYS), "seccomp": ([317], errno.EINVAL)}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("is_true", ctypes.c_uint8), ("is_false", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def install(feature):
    numbers, error = CALLS[feature]
    instructions = [Instruction(LOAD, 0, 0, 0)]
    for number in numbers:
        instructions += [Instruction(JUMP_IF_EQUAL, 0, 1, number), Instruction(RETURN, 0, 0, FAIL | error)]
    instructions.append(Instruction(RETURN, 0, 0, ALLOW))
    program = Program(len(instructions), (Instruction * len(instructions))(*instructions))
    library = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0)):
        if library.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    install(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
