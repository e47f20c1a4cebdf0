"""Clients of OpenAI's interface in Python, as they are released: each does the same tasks. Not among the default tests:
`cargo xtask test ai-clients`."""

import asyncio
import json
import os
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

# LiteLLM would fetch prices from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import instructor
import litellm
import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI, OpenAI

import gguf_models
from ai_site import site  # noqa: F401 - a fixture

# The model's own words: a call of the tool.
CALL = 'say Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
SAID = "The tool says: rain in Oslo"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# More alternatives than a request may want.
WRONG: Any = {"logprobs": True, "top_logprobs": 99}


class Person(BaseModel):
    """What the real model has to fill in."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def status(error):
    """The status of the answer that an error is about."""
    return getattr(error, "status_code", None)


class Sync:
    """OpenAI's client."""

    def __init__(self, url, key="none", retries=0):
        self.client = OpenAI(base_url=url, api_key=key, max_retries=retries)

    def ask(self, text, model="chat", **fields):
        return self.client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **fields)

    def chat(self, text, model="chat", **fields):
        answer = self.ask(text, model, **fields)
        return answer.choices[0].message.content, answer.usage.completion_tokens

    def stream(self, text):
        chunks = list(self.ask(text, stream=True, stream_options={"include_usage": True}))
        return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices], chunks[-1].usage.completion_tokens

    def tools(self):
        messages: Any = [{"role": "user", "content": CALL}]
        with self.client.chat.completions.stream(model="chat", messages=messages, tools=[WEATHER]) as stream:
            message = stream.get_final_completion().choices[0].message
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": weather(**json.loads(call.function.arguments))}
        answer = self.client.chat.completions.create(model="chat", messages=[*messages, message, result], tools=[WEATHER])
        return answer.choices[0].message.content

    def structured(self):
        messages: Any = [{"role": "user", "content": "Invent a person."}]
        answer = self.client.chat.completions.parse(
            model="small", messages=messages, response_format=Person, max_tokens=200, temperature=0
        )
        return answer.choices[0].message.parsed

    def embed(self, texts, model="vectors"):
        return [entry.embedding for entry in self.client.embeddings.create(model=model, input=texts).data]

    def leave(self):
        with self.ask("endless", stream=True) as stream:
            assert "tick" in next(iter(stream)).choices[0].delta.content + next(iter(stream)).choices[0].delta.content


class Responses(Sync):
    """OpenAI's client, in its newer form."""

    def ask(self, text, model="chat", **fields):
        return self.client.responses.create(model=model, input=text, **fields)

    def chat(self, text, model="chat", **fields):
        if fields.pop("logprobs", None):
            fields["top_logprobs"] = 99
        answer = self.ask(text, model, **fields)
        return answer.output_text, answer.usage.output_tokens

    def stream(self, text):
        with self.client.responses.stream(model="chat", input=text) as stream:
            parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
            return parts, stream.get_final_response().usage.output_tokens

    def tools(self):
        function: Any = {"type": "function", **WEATHER["function"], "strict": True}
        answer = self.client.responses.create(model="chat", input=CALL, tools=[function])
        (call,) = [item for item in answer.output if item.type == "function_call"]
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": weather("Oslo")}
        second = self.client.responses.create(model="chat", input=[result], previous_response_id=answer.id, tools=[function])
        return second.output_text

    def structured(self):
        answer = self.client.responses.parse(
            model="small", input="Invent a person.", text_format=Person, max_output_tokens=200, temperature=0
        )
        return answer.output_parsed

    def leave(self):
        with self.ask("endless", stream=True) as stream:
            assert any(event.type == "response.output_text.delta" for event in stream)


class Async:
    """OpenAI's client for asyncio."""

    def __init__(self, url, key="none", retries=0):
        self.arguments: Any = {"base_url": url, "api_key": key, "max_retries": retries}

    def run(self, act):
        async def acted():
            async with AsyncOpenAI(**self.arguments) as client:
                return await act(client)

        return asyncio.run(acted())

    def chat(self, text, model="chat", **fields):
        messages: Any = [{"role": "user", "content": text}]
        answer = self.run(lambda client: client.chat.completions.create(model=model, messages=messages, **fields))
        return answer.choices[0].message.content, answer.usage.completion_tokens

    def stream(self, text):
        async def act(client):
            options = {"stream": True, "stream_options": {"include_usage": True}}
            messages = [{"role": "user", "content": text}]
            return [chunk async for chunk in await client.chat.completions.create(model="chat", messages=messages, **options)]

        chunks = self.run(act)
        return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices], chunks[-1].usage.completion_tokens

    def tools(self):
        async def act(client):
            messages = [{"role": "user", "content": CALL}]
            first = await client.chat.completions.create(model="chat", messages=messages, tools=[WEATHER])
            (call,) = first.choices[0].message.tool_calls
            result = {"role": "tool", "tool_call_id": call.id, "content": weather("Oslo")}
            conversation = [*messages, first.choices[0].message, result]
            second = await client.chat.completions.create(model="chat", messages=conversation, tools=[WEATHER])
            return second.choices[0].message.content

        return self.run(act)

    def structured(self):
        messages: Any = [{"role": "user", "content": "Invent a person."}]
        answer = self.run(
            lambda client: client.chat.completions.parse(
                model="small", messages=messages, response_format=Person, max_tokens=200, temperature=0
            )
        )
        return answer.choices[0].message.parsed

    def embed(self, texts, model="vectors"):
        answer = self.run(lambda client: client.embeddings.create(model=model, input=texts))
        return [entry.embedding for entry in answer.data]

    def leave(self):
        async def act(client):
            messages = [{"role": "user", "content": "endless"}]
            async with await client.chat.completions.create(model="chat", messages=messages, stream=True) as stream:
                async for _ in stream:
                    break

        self.run(act)


class LangChainChat:
    """LangChain's models of text."""

    responses = False

    def __init__(self, url, key="none", retries=0):
        self.arguments: Any = {"base_url": url, "api_key": key, "max_retries": retries}

    def model(self, model="chat", **fields):
        return ChatOpenAI(model=model, use_responses_api=self.responses, stream_usage=True, **self.arguments, **fields)

    def chat(self, text, model="chat", **fields):
        answer = self.model(model, **fields).invoke(text)
        return answer.text, answer.usage_metadata["output_tokens"]

    def stream(self, text):
        chunks = list(self.model().stream(text))
        whole = sum(chunks[1:], chunks[0])
        return [chunk.text for chunk in chunks], whole.usage_metadata["output_tokens"]

    def tools(self):
        model = self.model().bind_tools([tool(weather)])
        messages: list = [HumanMessage(CALL)]
        answer = model.invoke(messages)
        (call,) = answer.tool_calls
        messages += [answer, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
        return model.invoke(messages).text

    def structured(self):
        return (
            self.model("small", max_tokens=200, temperature=0)
            .with_structured_output(Person, method="json_schema")
            .invoke("Invent a person.")
        )

    def leave(self):
        stream = self.model().stream("endless")
        next(stream)
        next(stream)
        stream.close()


class LangChain(LangChainChat):
    """LangChain's models."""

    def embed(self, texts, model="vectors"):
        # Otherwise it cuts texts by the tokens of a model of OpenAI's.
        embeddings = OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **self.arguments)
        return asyncio.run(embeddings.aembed_documents(texts))


class LangChainResponses(LangChainChat):
    """LangChain's models, in the newer form of the interface."""

    responses = True

    def chat(self, text, model="chat", **fields):
        fields.pop("logprobs", None)
        return super().chat(text, model, **fields)


class LlamaIndex:
    """LlamaIndex's models."""

    def __init__(self, url, key="none", retries=0):
        self.arguments: Any = {"api_base": url, "api_key": key, "max_retries": retries}

    def model(self, model="chat", **fields):
        kinds: Any = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
        return OpenAILike(model=model, additional_kwargs=fields, **kinds, **self.arguments)

    def chat(self, text, model="chat", **fields):
        answer = self.model(model, **fields).chat([ChatMessage(text)])
        return answer.message.content, answer.raw.usage.completion_tokens

    def stream(self, text):
        model = self.model(stream_options={"include_usage": True})
        chunks = list(model.stream_chat([ChatMessage(text)]))
        return [chunk.delta or "" for chunk in chunks], chunks[-1].raw.usage.completion_tokens

    def tools(self):
        function = FunctionTool.from_defaults(weather)
        answer = self.model().predict_and_call([function], user_msg=CALL)
        assert answer.sources[0].raw_input["kwargs"] == {"city": "Oslo"}
        model = self.model()
        first = model.chat_with_tools([function], user_msg=CALL)
        (call,) = model.get_tool_calls_from_response(first)
        result = ChatMessage(weather(**call.tool_kwargs), role="tool", additional_kwargs={"tool_call_id": call.tool_id})
        second = model.chat_with_tools([function], chat_history=[ChatMessage(CALL), first.message, result])
        return second.message.content

    def structured(self):
        model = self.model("small", max_tokens=200, temperature=0)
        return model.as_structured_llm(Person).complete("Invent a person.").raw

    def embed(self, texts, model="vectors"):
        return OpenAILikeEmbedding(model_name=model, **self.arguments).get_text_embedding_batch(texts)

    def leave(self):
        # The connection of a stream stays open as long as its client.
        model = self.model()
        next(model.stream_chat([ChatMessage("endless")]))
        model._get_client().close()


class LiteLlm:
    """LiteLLM, as for a server of this kind."""

    provider = "openai"

    def __init__(self, url, key="none", retries=0):
        self.arguments: Any = {"api_base": url, "api_key": key, "num_retries": retries, "max_retries": retries}

    def ask(self, text, model="chat", **fields):
        messages = [{"role": "user", "content": text}]
        return litellm.completion(model=f"{self.provider}/{model}", messages=messages, **self.arguments, **fields)

    def chat(self, text, model="chat", **fields):
        answer = self.ask(text, model, **fields)
        return answer.choices[0].message.content, answer.usage.completion_tokens

    def stream(self, text):
        chunks = list(self.ask(text, stream=True, stream_options={"include_usage": True}))
        (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices], usage.completion_tokens

    def tools(self):
        first = self.ask(CALL, tools=[WEATHER]).choices[0].message
        (call,) = first.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": weather("Oslo")}
        conversation = [{"role": "user", "content": CALL}, first.model_dump(), result]
        second = litellm.completion(model=f"{self.provider}/chat", messages=conversation, tools=[WEATHER], **self.arguments)
        return second.choices[0].message.content

    def structured(self):
        answer = self.ask("Invent a person.", "small", response_format=Person, max_tokens=200, temperature=0)
        return Person.model_validate_json(answer.choices[0].message.content)

    def embed(self, texts, model="vectors"):
        answer = litellm.embedding(model=f"{self.provider}/{model}", input=texts, encoding_format="float", **self.arguments)
        return [entry["embedding"] for entry in answer.data]

    def leave(self):
        stream = self.ask("endless", stream=True)
        next(stream)
        next(stream)
        stream.completion_stream.close()


class LiteLlmForVllm(LiteLlm):
    """LiteLLM, as for a server of vLLM's."""

    provider = "hosted_vllm"

    def __init__(self, url, key="none", retries=0):
        super().__init__(url, key, retries)
        # By default, further attempts come at once, whatever the server says.
        self.arguments["retry_strategy"] = "exponential_backoff_retry"


class Instructor:
    """Instructor in one of its modes."""

    mode: Any = None

    def __init__(self, url, key="none", retries=0):
        self.client = instructor.from_openai(OpenAI(base_url=url, api_key=key, max_retries=retries), mode=self.mode)

    def structured(self):
        messages: Any = [{"role": "user", "content": "Invent a person."}]
        return self.client.chat.completions.create(
            model="small", messages=messages, response_model=Person, max_tokens=200, temperature=0
        )


class InstructorSchema(Instructor):
    mode = instructor.Mode.JSON_SCHEMA


class InstructorTools(Instructor):
    mode = instructor.Mode.TOOLS


CLIENTS = [
    Sync,
    Responses,
    Async,
    LangChain,
    LangChainResponses,
    LlamaIndex,
    LiteLlm,
    LiteLlmForVllm,
    InstructorSchema,
    InstructorTools,
]


def each(task):
    """Every client that has a task."""
    return pytest.mark.parametrize("client", [client for client in CLIENTS if getattr(client, task, None)])


@each("chat")
def test_answers_have_their_text_and_the_number_of_tokens(site, client):
    assert client(site.url).chat("count 3") == ("1 2 3 ", 3)


@each("stream")
def test_streams_come_in_pieces_and_end_with_the_number_of_tokens(site, client):
    parts, tokens = client(site.url).stream("count 5")
    assert "".join(parts) == "1 2 3 4 5 " and tokens == 5
    assert len([part for part in parts if part]) == 5


@each("tools")
def test_tools_are_called_and_their_results_are_answered(site, client):
    assert client(site.url).tools() == SAID


@each("structured")
def test_real_model_fills_in_a_form(site, client):
    person = client(site.url).structured()
    assert isinstance(person, Person)


@each("embed")
@pytest.mark.parametrize("texts", [["a"], ["a", "bc", "def", "g", "hi"]], ids=["one", "five"])
def test_texts_have_their_vectors(site, client, texts):
    assert client(site.url).embed(texts) == [[len(text), ord(text[0]), 0.5] for text in texts]


@each("embed")
def test_embeddings_of_a_gguf_model_have_its_size(site, client):
    assert [len(vector) for vector in client(site.url).embed(["a", "b"], "embedder")] == [gguf_models.WIDTH] * 2


@each("chat")
def test_unknown_models_and_wrong_parameters_are_the_clients_own_errors(site, client):
    with pytest.raises((openai.NotFoundError, litellm.NotFoundError)) as missing:
        client(site.url).chat("a", "unknown")
    with pytest.raises((openai.BadRequestError, litellm.BadRequestError)) as wrong:
        client(site.url).chat("a", **WRONG)
    assert [status(error.value) for error in (missing, wrong)] == [404, 400]
    assert "Unknown model: unknown" in str(missing.value)
    assert "top_logprobs" in str(wrong.value)


@each("chat")
def test_limits_are_the_clients_own_errors_and_end_by_themselves(site, client):
    once = client(site.limited_url, site.key)
    with pytest.raises((openai.RateLimitError, litellm.RateLimitError)) as refused:
        for _ in range(100):
            once.chat("count 1")
    assert status(refused.value) == 429
    # Another attempt comes after the time that the server names.
    assert client(site.limited_url, site.key, retries=5).chat("count 1") == ("1 ", 1)


@each("leave")
def test_leaving_a_stream_cancels_it(site, client):
    assert site.sees_cancelled(client(site.url).leave)
