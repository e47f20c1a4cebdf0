"""Images in messages of OpenAI's clients: a model in Python decodes what it receives, with the pictures of real encoders."""

import base64
import io
import json
import sys
from http.client import HTTPConnection

import openai
import pytest
from openai import OpenAI
from PIL import Image

import language_models
import nereid_server

FLAGS = [f"--backend-config=python,python={sys.executable}", "--openai-default-max-tokens=1000"]
IMAGES = '\ninput [ { name: "image" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]\n'
LIMITS = 'parameters { key: "max_images" value { string_value: "3" } }'
# A place for each image, and text parts in order.
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}[IMG]{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{{ '' }}\n{% endfor %}<assistant>"
)
# Takes only lists, with images before texts.
LISTS = (
    "{% for message in messages %}{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}|{% endfor %}"
)
MODEL = '''
import base64
import io
import json

import numpy
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    """Answers with its prompt, and the format and size of each image, decoded as by Triton's vLLM backend."""

    def execute(self, requests):
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
            images = [Image.open(io.BytesIO(base64.b64decode(text))) for text in inputs.get("image", [])]
            seen = [[image.format, *image.size, *image.convert("RGB").getpixel((0, 0))] for image in images]
            text = json.dumps({"prompt": inputs["text_input"][0].decode(), "images": seen})
            output = pb_utils.Tensor("text_output", numpy.array([text.encode()], dtype=numpy.object_))
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([output]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


def encoded(kind, size=(3, 2), colour=(255, 0, 0)):
    """A picture of one colour, in base64."""
    contents = io.BytesIO()
    Image.new("RGB", size, colour).save(contents, kind)
    return base64.b64encode(contents.getvalue()).decode()


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def picture(kind="PNG", **how):
    return part(f"data:image/{kind.lower()};base64,{encoded(kind, **how)}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("images")
    for name, template, more in [("sees", TEMPLATE, IMAGES), ("lists", LISTS, IMAGES), ("few", TEMPLATE, IMAGES + LIMITS)]:
        language_models.write(repository, name, more, template)
        (repository / name / "1" / "model.py").write_text(MODEL)
    language_models.write(repository, "blind", template=TEMPLATE)
    with nereid_server.running(repository, *FLAGS) as server:
        yield server


@pytest.fixture
def client(server):
    with OpenAI(base_url=f"http://{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, content, model="sees", **fields):
    """What the model has seen."""
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], **fields)
    return json.loads(answer.choices[0].message.content)


def test_pictures_of_all_formats_arrive_in_order(client):
    kinds = ["PNG", "JPEG", "GIF", "WEBP"]
    content: list = ["look: "]
    for number, kind in enumerate(kinds):
        content += [picture(kind, size=(number + 1, 7)), f" {number} "]
    seen = ask(client, content)
    assert seen["prompt"] == "<user> look: [IMG] 0 [IMG] 1 [IMG] 2 [IMG] 3 \n<assistant>"
    assert [image[:3] for image in seen["images"]] == [[kind, number + 1, 7] for number, kind in enumerate(kinds)]
    assert all(red > 250 and green < 5 and blue < 5 for *_, red, green, blue in seen["images"])


def test_templates_of_lists_get_them_also_for_texts(client):
    assert ask(client, "hello", "lists") == {"prompt": "hello|", "images": []}
    seen = ask(client, ["first", picture(), {"type": "text", "text": "second"}, picture("GIF")], "lists")
    assert (seen["prompt"], [image[0] for image in seen["images"]]) == ("<image><image>firstsecond|", ["PNG", "GIF"])


def test_responses_have_images_and_keep_them_in_the_conversation(client):
    url = f"data:image/png;base64,{encoded('PNG')}"
    content = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    first = client.responses.create(model="sees", input=[{"role": "user", "content": content}])
    assert json.loads(first.output_text)["prompt"] == "<user> what?[IMG]\n<assistant>"
    second = client.responses.create(model="sees", input="again", previous_response_id=first.id)
    seen = json.loads(second.output_text)
    assert len(seen["images"]) == 1 and seen["prompt"].startswith("<user> what?[IMG]\n<assistant> ")
    assert seen["prompt"].endswith("\n<user> again\n<assistant>")


@pytest.mark.parametrize(
    ("model", "content", "reason"),
    [
        ("blind", [picture()], "model 'blind' takes no images: it has no BYTES input 'image'"),
        ("sees", [part("https://example.com/a.png")], "http and https addresses are not fetched"),
        ("sees", [part("file:///etc/passwd")], "must be of the form data:image/png;base64"),
        ("sees", [part("data:image/svg+xml;base64,PHN2Zy8+")], "images of type 'image/svg+xml' are not supported"),
        ("sees", [part("data:image/png;base64,PHN2Zy8+")], "is not a PNG, JPEG, WebP or GIF image"),
        ("sees", ["a", part("data:image/png;base64,iVBORw0KGgo=!")], "'messages[0].content[1]': the image is not valid base64"),
        ("few", [picture()] * 4, "'messages[0].content[3]': model 'few' takes at most 3 images"),
        ("sees", [picture()] * 10_000, "'messages[0].content[16]': model 'sees' takes at most 16 images"),
        ("sees", [{"type": "input_audio", "input_audio": {}}], "parts of type 'input_audio' are not supported"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_images_that_cannot_be_used_are_refused_with_the_reason(client, model, content, reason, stream):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], stream=stream)
    assert reason in str(refused.value) and refused.value.param == "messages"


def test_large_images_are_refused_and_the_server_goes_on(server, client):
    # 21 MiB behind the head of a PNG, within the limit of a body; and more than a body may have.
    head = base64.b64decode(encoded("PNG"))
    with pytest.raises(openai.BadRequestError, match="larger than 20971520 bytes"):
        ask(client, [part("data:image/png;base64," + base64.b64encode(head + bytes(21 << 20)).decode())])
    connection = HTTPConnection(server.url, timeout=60)
    body = json.dumps({"model": "sees", "messages": [{"role": "user", "content": [part("x" * (100 << 20))]}]})
    try:
        connection.request("POST", "/v1/chat/completions", body)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        # The server need not read it all.
        pass
    assert ask(client, [picture()])["images"] == [["PNG", 3, 2, 255, 0, 0]]


def test_broken_pictures_fail_in_the_model_alone(client):
    cut = base64.b64encode(base64.b64decode(encoded("PNG"))[:20]).decode()
    with pytest.raises(openai.InternalServerError):
        ask(client, [part(f"data:image/png;base64,{cut}")])
    assert ask(client, [picture()])["prompt"] == "<user> [IMG]\n<assistant>"
