"""A stand-in for the package `vllm`: the names that Triton's vLLM backend uses, over a model that writes the prompt's words backwards."""

_MODULES = {
    "__init__": "",
    "config": "class VllmConfig: ...",
    "engine/__init__": "",
    "engine/protocol": "class EngineClient: ...",
    "engine/arg_utils": """
from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass
class AsyncEngineArgs:
    model: str = ""
    max_model_len: int = 64
    gpu_memory_utilization: float = 0.9
    enable_lora: bool = False
    disable_log_stats: bool = False
    enable_log_requests: bool = False
    aggregate_engine_logging: bool = False
    fails: bool = False

    def create_engine_config(self, usage_context):
        return SimpleNamespace(args=self, model_config=SimpleNamespace(max_model_len=self.max_model_len))
""",
    "inputs/__init__": "",
    "inputs/data": """
class TokensPrompt(dict):
    ...
""",
    "lora/__init__": "",
    "lora/request": """
class LoRARequest:
    def __init__(self, name, number, path):
        self.name, self.number, self.path = name, number, path
""",
    "outputs": """
from dataclasses import dataclass, field


@dataclass
class Logprob:
    logprob: float
    rank: int
    decoded_token: str


@dataclass
class Completion:
    text: str
    token_ids: list
    finish_reason: str | None = None
    cumulative_logprob: float | None = None
    logprobs: list | None = None


@dataclass
class RequestOutput:
    prompt: str
    prompt_token_ids: list
    outputs: list
    finished: bool = False


@dataclass
class EmbeddingOutput:
    embedding: list


@dataclass
class PoolingRequestOutput:
    outputs: EmbeddingOutput
    prompt_token_ids: list

    def __class_getitem__(cls, item):
        return cls


class EmbeddingRequestOutput:
    @staticmethod
    def from_base(output):
        return output
""",
    "pooling_params": """
class PoolingParams:
    def __init__(self, dimensions=None, task=None):
        self.dimensions, self.task = dimensions, task
""",
    "sampling_params": """
from typing import Optional


class StructuredOutputsParams:
    def __init__(self, json=None, json_object=None, regex=None):
        self.json, self.json_object, self.regex = json, json_object, regex


class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    max_tokens: Optional[int] = 16
    seed: Optional[int] = None
    logprobs: Optional[int] = None
    stop: list = []
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    structured_outputs: Optional[StructuredOutputsParams] = None

    def __init__(self, **parameters):
        for name, value in parameters.items():
            if name not in SamplingParams.__annotations__ and name != "lora_name":
                raise TypeError(f"unexpected sampling parameter {name}")
            setattr(self, name, value)
""",
    "usage/__init__": "",
    "usage/usage_lib": """
class UsageContext:
    OPENAI_API_SERVER = 1
""",
    "utils": """
import uuid


def random_uuid():
    return uuid.uuid4().hex
""",
    "v1/__init__": "",
    "v1/engine/__init__": "",
    "v1/engine/async_llm": """
import asyncio
from types import SimpleNamespace

from vllm.outputs import Completion, EmbeddingOutput, Logprob, PoolingRequestOutput, RequestOutput
from vllm.v1.metrics.stats import IterationStats


class AsyncLLM:
    @classmethod
    def from_vllm_config(cls, vllm_config, stat_loggers=None, **options):
        if vllm_config.args.fails:
            raise RuntimeError("no GPU for the engine")
        engine = cls()
        engine.loggers = [factory(vllm_config, 0) for factory in stat_loggers or []]
        engine.aborted = set()
        return engine

    async def reset_mm_cache(self):
        ...

    async def get_supported_tasks(self):
        return ("generate", "embed")

    async def check_health(self):
        ...

    async def abort(self, request_id):
        self.aborted.add(request_id)

    def shutdown(self):
        ...

    async def generate(self, prompt, sampling, request_id, lora_request=None):
        text = prompt["prompt"] if isinstance(prompt, dict) else prompt
        words = text.split()[::-1]
        if isinstance(prompt, dict):
            words = [str(image.size) for image in prompt["multi_modal_data"]["image"]]
        if sampling.structured_outputs is not None and sampling.structured_outputs.json is not None:
            words = [str(sampling.structured_outputs.json["const"])]
        if lora_request is not None:
            words = [lora_request.name, lora_request.path]
        if text.startswith("aborted"):
            words = [str(len(self.aborted))]
        is_endless, given = text.startswith("endless"), text
        count = len(words) if is_endless else min(len(words), sampling.max_tokens)
        text, logprobs, number = "", [], 0
        while number < count or is_endless:
            await asyncio.sleep(0.001)
            word = words[number % len(words)]
            number += 1
            text += f" {word}" if text else word
            logprobs.append({number: Logprob(-0.5, 1, word)})
            reason = None if number < count or is_endless else "stop" if count == len(words) else "length"
            completion = Completion(text, list(range(number)), reason, -0.5 * number, logprobs if sampling.logprobs else None)
            yield RequestOutput(given, list(range(len(words))), [completion], finished=reason is not None)
        stats = IterationStats(num_prompt_tokens=len(words), num_generation_tokens=number)
        for logger in self.loggers:
            logger.record(None, stats)

    async def encode(self, prompt, pooling, request_id):
        tokens = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt.split()
        size = pooling.dimensions or 4
        yield PoolingRequestOutput(EmbeddingOutput([float(len(tokens))] * size), list(range(len(tokens))))
""",
    "v1/metrics/__init__": "",
    "v1/metrics/loggers": """
class StatLoggerBase:
    def __init__(self, vllm_config, engine_index):
        ...


StatLoggerFactory = object


def build_1_2_5_buckets(limit):
    return [float(bucket) for exponent in range(4) for bucket in (10**exponent, 2 * 10**exponent, 5 * 10**exponent) if bucket <= limit]
""",
    "v1/metrics/stats": """
from dataclasses import dataclass, field


class SchedulerStats: ...


class MultiModalCacheStats: ...


@dataclass
class IterationStats:
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    finished_requests: list = field(default_factory=list)
    time_to_first_tokens_iter: list = field(default_factory=lambda: [0.01])
    inter_token_latencies_iter: list = field(default_factory=lambda: [0.02, 0.02])
    n_params_iter: list = field(default_factory=lambda: [1])
""",
}


def write(folder):
    """Writes the package into a folder."""
    for name, source in _MODULES.items():
        path = folder / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
