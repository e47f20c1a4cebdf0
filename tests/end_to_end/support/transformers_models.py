"""Writes small language models with random weights, in the layout of Hugging Face's hub: run with the Python of `transformers_package`.

Prints as JSON what `generate` of the package itself writes for some prompts: for each model a list of prompt, number of its tokens, tokens
and text; and the same for one of them with a penalty.
"""

import json
import random
import sys
from pathlib import Path

import tokenizers
import torch
import transformers

# The longest contexts: of the model with a learned vector for each position, and of the others.
SHORT, LONG = 128, 16384
PROMPTS = 50
PENALTY = 1.5
ANSWER = 24

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs",
    "größer als drei €, 日本語 und 😀",
]


def tokenizer():
    """Tokens for all bytes and some words, beginning with `<s>` as Llama's."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(TEXT * 4, trainer)
    first = [("<s>", trained.token_to_id("<s>"))]
    trained.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=first)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<s>", eos_token="</s>")
    made.chat_template = CHAT_TEMPLATE
    return made


def configs(tokens):
    """The smallest model of each family."""
    how = {"vocab_size": tokens, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.5, "tie_word_embeddings": False}
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    size |= {"max_position_embeddings": LONG} | how
    yield "llama", transformers.LlamaConfig(**size)
    yield "qwen2", transformers.Qwen2Config(**size)
    # Each layer sees the last 16 tokens only.
    yield "mistral", transformers.MistralConfig(**size, sliding_window=16)
    yield "gpt2", transformers.GPT2Config(n_positions=SHORT, n_embd=32, n_layer=2, n_head=4, **how)


def prompts():
    chosen = random.Random(7)
    words = " ".join(TEXT).split()
    return [" ".join(chosen.choices(words, k=chosen.randint(1, 12))) for _ in range(PROMPTS)]


def written(model, tokenizer, **more):
    """What the model writes after each prompt."""
    for prompt in prompts():
        inputs = tokenizer(prompt, return_tensors="pt")
        count = inputs["input_ids"].shape[1]
        how = {"max_new_tokens": ANSWER, "do_sample": False, "pad_token_id": 1} | more
        tokens = model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **how)[0, count:].tolist()
        yield prompt, count, tokens, tokenizer.decode(tokens, skip_special_tokens=True)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    folder, found = Path(sys.argv[1]), {}
    own = tokenizer()
    for number, (name, config) in enumerate(configs(len(own))):
        torch.manual_seed(number)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        model.save_pretrained(folder / name)
        own.save_pretrained(folder / name)
        # The model as it is read from its files.
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / name)
        found[name] = list(written(model, own))
        if name == "llama":
            found["penalised"] = list(written(model, own, repetition_penalty=PENALTY))
    print(json.dumps(found))


main()
