"""Small language models in GGUF files: random weights of a fixed seed, and a vocabulary of letters and bytes."""

import struct
from pathlib import Path

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
WIDTH, CONTEXT = 64, 512
_HEADS, _HIDDEN, _LAYERS = 4, 96, 2
# The mean of the tokens' vectors, and scores of pairs.
MEAN, RANK = 1, 4
_ALIGNMENT = 32
_U16, _U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 2, 4, 6, 7, 8, 9, 5
KINDS = {"u16": _U16, "u32": _U32, "i32": _I32, "f32": _F32, "text": _STRING}
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def vocabulary():
    """The texts, scores and types of the tokens: unknown, begin, end, all bytes, letters, and pairs of letters."""
    tokens = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    tokens += [(letter, -100.0, _NORMAL) for letter in "\u2581" + LETTERS]
    tokens += [(first + second, -1.0, _NORMAL) for first in "abc" for second in LETTERS]
    return tokens


def _text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(kind, value):
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U16: "<H", _U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}[kind], value)


def _pair(key, kind, value):
    if isinstance(value, list):
        items = b"".join(_value(kind, item) for item in value)
        return _text(key) + struct.pack("<IIQ", _ARRAY, kind, len(value)) + items
    return _text(key) + struct.pack("<I", kind) + _value(kind, value)


def gguf(seed=1, pooling=None):
    """The bytes of a model's file. With `pooling`, it is a model for embeddings."""
    return parts(1, seed, pooling)[0]


def parts(count, seed=1, pooling=None):
    """The bytes of a model's file, split into several, of which the first has the metadata."""
    pairs, tensors = (list(part.values()) for part in _model(seed, pooling))
    files = []
    for number in range(count):
        own = tensors[len(tensors) * number // count : len(tensors) * (number + 1) // count]
        split = [
            _pair("split.no", _U16, number),
            _pair("split.count", _U16, count),
            _pair("split.tensors.count", _I32, len(tensors)),
        ]
        files.append(_file((pairs if number == 0 else []) + (split if count > 1 else []), own))
    return files


def altered(pairs=None, tensors=None, counts=None, seed=1):
    """The bytes of a model's file in which something is wrong.

    `pairs` has other values by their keys, as `(kind, value)` with a kind of `KINDS`, or bytes; None removes one. `tensors` has changes by the
    names of tensors: of `dims`, `kind`, `offset`, `name`, or of the `contents`; None removes one. `counts` are other numbers of tensors
    and pairs.
    """
    known, described = _model(seed, None)
    for key, value in (pairs or {}).items():
        if value is None:
            del known[key]
        else:
            known[key] = value if isinstance(value, bytes) else _pair(key, KINDS.get(value[0], value[0]), value[1])
    for name, change in (tensors or {}).items():
        if change is None:
            del described[name]
        else:
            described[name] |= change
    return _file(list(known.values()), list(described.values()), counts)


def _model(seed, pooling):
    """The metadata of a model by its keys, and its tensors by their names."""
    tokens, scores, types = (list(column) for column in zip(*vocabulary(), strict=True))
    rng = np.random.default_rng(seed)
    size = len(tokens)
    shapes = {"token_embd.weight": (size, WIDTH), "output_norm.weight": (WIDTH,), "output.weight": (size, WIDTH)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        shapes |= {f"{block}attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"{block}{name}_norm.weight": (WIDTH,) for name in ("attn", "ffn")}
        shapes |= {f"{block}ffn_{name}.weight": (_HIDDEN, WIDTH) for name in ("gate", "up")}
        shapes[f"{block}ffn_down.weight"] = (WIDTH, _HIDDEN)
    values = {
        "general.architecture": (_STRING, "llama"),
        "llama.context_length": (_U32, CONTEXT),
        "llama.embedding_length": (_U32, WIDTH),
        "llama.block_count": (_U32, _LAYERS),
        "llama.feed_forward_length": (_U32, _HIDDEN),
        "llama.attention.head_count": (_U32, _HEADS),
        "llama.attention.layer_norm_rms_epsilon": (_F32, 1e-5),
        "tokenizer.ggml.model": (_STRING, "llama"),
        "tokenizer.ggml.tokens": (_STRING, tokens),
        "tokenizer.ggml.scores": (_F32, scores),
        "tokenizer.ggml.token_type": (_I32, types),
        "tokenizer.ggml.unknown_token_id": (_U32, 0),
        "tokenizer.ggml.bos_token_id": (_U32, 1),
        "tokenizer.ggml.eos_token_id": (_U32, 2),
        "tokenizer.chat_template": (_STRING, CHAT_TEMPLATE),
    }
    if pooling is not None:
        values["llama.pooling_type"] = (_U32, pooling)
    pairs = {key: _pair(key, kind, value) for key, (kind, value) in values.items()}
    tensors = {
        name: _tensor(name, np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) * 0.5)
        for name, shape in shapes.items()
    }
    return pairs, tensors


RERANK_TEMPLATE = "<s>{query}</s>{document}</s>"
# Which tokens begin a word.
_WORD = "\u2581"


def scorer(seed=3):
    """The bytes of a model of BERT's kind that scores pairs with one number. Its words are letters, alone and within a word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + [_WORD + letter for letter in LETTERS] + list(LETTERS)
    types = [_CONTROL, _UNKNOWN, *[_CONTROL] * 3] + [_NORMAL] * 2 * len(LETTERS)
    rng = np.random.default_rng(seed)
    norms = ["token_embd_norm"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), WIDTH),
        "token_types.weight": (2, WIDTH),
        "position_embd.weight": (CONTEXT, WIDTH),
    }
    matrices = {"cls": (WIDTH, WIDTH), "cls.output": (1, WIDTH)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        matrices |= {f"{block}attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        matrices |= {f"{block}ffn_up": (_HIDDEN, WIDTH), f"{block}ffn_down": (WIDTH, _HIDDEN)}
        norms += [f"{block}attn_output_norm", f"{block}layer_output_norm"]
    for name, shape in matrices.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    tensors = [_tensor(name, rng.standard_normal(shape) * 0.3) for name, shape in shapes.items()]
    for name in norms:
        tensors += [_tensor(f"{name}.weight", np.ones(WIDTH)), _tensor(f"{name}.bias", np.zeros(WIDTH))]
    pairs = [
        _pair("general.architecture", _STRING, "bert"),
        _pair("bert.context_length", _U32, CONTEXT),
        _pair("bert.embedding_length", _U32, WIDTH),
        _pair("bert.block_count", _U32, _LAYERS),
        _pair("bert.feed_forward_length", _U32, _HIDDEN),
        _pair("bert.attention.head_count", _U32, _HEADS),
        _pair("bert.attention.layer_norm_epsilon", _F32, 1e-12),
        _pair("bert.attention.causal", _BOOL, False),
        _pair("bert.pooling_type", _U32, RANK),
        _pair("tokenizer.ggml.model", _STRING, "bert"),
        _pair("tokenizer.ggml.tokens", _STRING, tokens),
        _pair("tokenizer.ggml.token_type", _I32, types),
        _pair("tokenizer.ggml.token_type_count", _U32, 2),
        _pair("tokenizer.ggml.padding_token_id", _U32, 0),
        _pair("tokenizer.ggml.unknown_token_id", _U32, 1),
        _pair("tokenizer.ggml.cls_token_id", _U32, 2),
        _pair("tokenizer.ggml.bos_token_id", _U32, 2),
        _pair("tokenizer.ggml.seperator_token_id", _U32, 3),
        _pair("tokenizer.ggml.eos_token_id", _U32, 3),
        _pair("tokenizer.ggml.mask_token_id", _U32, 4),
    ]
    return _file(pairs, tensors)


def judge(seed=4):
    """The bytes of a model of Qwen3's kind that scores pairs with the probability of the first of two classes, by a template."""
    tokens, scores, types = (list(column) for column in zip(*vocabulary(), strict=True))
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (len(tokens), WIDTH), "output_norm.weight": (WIDTH,), "cls.output.weight": (2, WIDTH)}
    head = WIDTH // _HEADS
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        shapes |= {f"{block}attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"{block}{name}_norm.weight": (WIDTH,) for name in ("attn", "ffn")}
        shapes |= {f"{block}attn_{name}_norm.weight": (head,) for name in ("q", "k")}
        shapes |= {f"{block}ffn_{name}.weight": (_HIDDEN, WIDTH) for name in ("gate", "up")}
        shapes[f"{block}ffn_down.weight"] = (WIDTH, _HIDDEN)
    tensors = [
        _tensor(name, np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) * 0.3) for name, shape in shapes.items()
    ]
    pairs = [
        _pair("general.architecture", _STRING, "qwen3"),
        _pair("qwen3.context_length", _U32, CONTEXT),
        _pair("qwen3.embedding_length", _U32, WIDTH),
        _pair("qwen3.block_count", _U32, _LAYERS),
        _pair("qwen3.feed_forward_length", _U32, _HIDDEN),
        _pair("qwen3.attention.head_count", _U32, _HEADS),
        _pair("qwen3.attention.key_length", _U32, head),
        _pair("qwen3.attention.value_length", _U32, head),
        _pair("qwen3.attention.layer_norm_rms_epsilon", _F32, 1e-6),
        _pair("qwen3.pooling_type", _U32, RANK),
        _pair("qwen3.classifier.output_labels", _STRING, ["yes", "no"]),
        _pair("tokenizer.ggml.model", _STRING, "llama"),
        _pair("tokenizer.ggml.tokens", _STRING, tokens),
        _pair("tokenizer.ggml.scores", _F32, scores),
        _pair("tokenizer.ggml.token_type", _I32, types),
        _pair("tokenizer.ggml.unknown_token_id", _U32, 0),
        _pair("tokenizer.ggml.bos_token_id", _U32, 1),
        _pair("tokenizer.ggml.eos_token_id", _U32, 2),
        _pair("tokenizer.chat_template.rerank", _STRING, RERANK_TEMPLATE),
    ]
    return _file(pairs, tensors)


def _tensor(name, values):
    """The description of a tensor, without its place in the file, and its contents."""
    # The format lists dimensions from the innermost one outwards; 0 is the type F32.
    return {"name": name, "dims": tuple(reversed(values.shape)), "kind": 0, "contents": values.astype("<f4").tobytes()}


def adapter(seed, rank=4, trigger=None):
    """The bytes of a LoRA adapter with random weights. With `trigger`, it applies only after these tokens."""
    rng = np.random.default_rng(seed)
    pairs = [
        _pair("general.type", _STRING, "adapter"),
        _pair("general.architecture", _STRING, "llama"),
        _pair("adapter.type", _STRING, "lora"),
        _pair("adapter.lora.alpha", _F32, float(rank)),
    ]
    if trigger is not None:
        pairs.append(_pair("adapter.alora.invocation_tokens", _U32, trigger))
    tensors = []
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_v", "attn_output"):
            weight = f"blk.{layer}.{name}.weight"
            tensors.append(_tensor(f"{weight}.lora_a", rng.standard_normal((rank, WIDTH)) * 0.3))
            tensors.append(_tensor(f"{weight}.lora_b", rng.standard_normal((WIDTH, rank)) * 0.3))
    return _file(pairs, tensors)


def _file(pairs, tensors, counts=None):
    """A file with this metadata and these tensors."""
    infos, data = b"", b""
    for tensor in tensors:
        dims, contents = tensor["dims"], tensor["contents"]
        infos += _text(tensor["name"]) + struct.pack(f"<I{len(dims)}QI", tensor.get("rank", len(dims)), *dims, tensor["kind"])
        infos += struct.pack("<Q", tensor.get("offset", len(data)))
        data += contents + b"\0" * (-len(contents) % _ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, *(counts or (len(tensors), len(pairs)))) + b"".join(pairs) + infos
    return head + b"\0" * (-len(head) % _ALIGNMENT) + data


def write(repository, name="writer", config=None, contents=None):
    """Writes a model into a repository, and returns its file."""
    path = Path(repository) / name / "1" / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(contents or gguf())
    if config is not None:
        (Path(repository) / name / "config.pbtxt").write_text(config)
    return path


def parameters(**values):
    """Parameters of a configuration."""
    return "".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items())
