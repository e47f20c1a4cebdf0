"""A repository of many models of real kinds, whose versions come, change and go, and what each may answer at a time.

Writes and moves files only; knows nothing of servers.
"""

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import model_kinds
from model_kinds import MIB, factor

#: What may be wrong with a broken model.
BREAKS = ("configuration", "file", "missing")
#: Kinds and how many of them, of 100 models.
SHARES = (
    ("onnx", model_kinds.Onnx(), 34),
    ("openvino", model_kinds.OpenVino(), 12),
    ("torch", model_kinds.Torch(), 8),
    ("tensorflow", model_kinds.TensorFlow(), 6),
    ("python", model_kinds.Python(), 14),
    ("forest", model_kinds.Forest(), 12),
    ("rust", model_kinds.Rust(), 4),
    ("c", model_kinds.C(), 3),
    ("ensemble", model_kinds.Ensemble(), 7),
)
#: The kinds of models whose files change meanwhile.
CHANGING = ("onnx", "openvino", "tensorflow", "python", "forest")
RELEASE = (
    "version_policy { all { } }\n"
    'parameters { key: "release_versions" value { string_value: "1=70, 2=30" } }\n'
    'parameters { key: "release_sticky_header" value { string_value: "x-user" } }\n'
)
BATCHES = "dynamic_batching { }\n"


@dataclass
class Model:
    """A model, and its state on disk over time."""

    name: str
    number: int
    kind: model_kinds.Kind
    kind_name: str
    #: `steady`, `changing`, `released` or `broken`.
    role: str
    size: int
    folder: Path
    #: For ensembles, by what they multiply.
    product: int = 0
    #: The names of an ensemble's members.
    members: list = field(default_factory=list)
    #: What is broken now, and where the folder is that was moved away last.
    damage: str = ""
    kept: Path | None = None
    #: How many editions there were.
    editions: int = 1
    #: The newest version and its edition, or None without any, since a time.
    history: list = field(default_factory=list)
    #: The editions by version that are on disk.
    versions: dict = field(default_factory=dict)

    def note(self):
        """Notes the state on disk after a change."""
        newest = max(self.versions, default=None)
        self.history.append((time.monotonic(), newest and (newest, self.versions[newest])))

    def expected(self, version):
        """The factors that answers of a version may have had so far, with the latest place in the history of each."""
        if self.kind_name == "c":
            return {0: 0}
        if self.kind_name == "ensemble":
            return {self.product: 0}
        if self.role == "released":
            return {factor(self.number, version): 0} if version in (1, 2) else {}
        found = {}
        for place, (_, state) in enumerate(list(self.history)):
            if state and state[0] == version:
                found[factor(self.number, state[1])] = place
        return found


class Fleet:
    """All models of a repository."""

    def __init__(self, repository, count, random):
        """Writes the models. Ensembles consist of steady ones."""
        self.repository, self.random = Path(repository), random
        # On the same file system, so that versions are moved in one step.
        self._aside = self.repository.parent / "aside"
        self._aside.mkdir()
        self._moves = 0
        kinds = [(name, kind) for name, kind, share in SHARES for _ in range(max(1, round(count * share / 100)))]
        random.shuffle(kinds)
        kinds.sort(key=lambda kind: kind[0] == "ensemble")
        self.models = [self._make(number, *kind) for number, kind in enumerate(kinds, 1)]
        torch: list = []
        for model in self.models:
            self._configure(model)
            for version in (1, 2) if model.role == "released" else (1,):
                folder = model.folder / str(version)
                if model.kind_name == "torch":
                    torch.append((folder, model.number, version, model.size))
                else:
                    model.kind.write(folder, model.number, version, model.size)
                model.versions[version] = version
            model.note()
        model_kinds.write_torch(torch)
        for place, model in enumerate(self.of_role("broken")):
            self.damage(model, BREAKS[place % len(BREAKS)])

    def _make(self, number, kind_name, kind):
        role = "steady"
        chance = self.random.random()
        if chance < 0.15 and kind_name in CHANGING:
            role = "changing"
        elif chance < 0.22 and kind_name not in ("c", "ensemble"):
            role = "released"
        elif chance < 0.27 and kind_name in CHANGING:
            role = "broken"
        size = int(MIB * 2 ** self.random.uniform(-1, 2.5))
        name = f"{kind_name}_{number}"
        return Model(name, number, kind, kind_name, role, size, self.repository / name)

    def _configure(self, model):
        model.folder.mkdir(parents=True, exist_ok=True)
        (model.folder / "config.pbtxt").write_text(self._config(model))

    def _config(self, model):
        if model.kind_name == "ensemble":
            if not model.product:
                numeric = ("onnx", "openvino", "torch", "tensorflow", "python")
                members = self.random.sample([it for it in self.of_role("steady") if it.kind_name in numeric], 2)
                model.members = [member.name for member in members]
                model.product = factor(members[0].number, 1) * factor(members[1].number, 1)
            return model.kind.config_of(model.name, *model.members)
        extra = RELEASE if model.role == "released" else ""
        if model.number % 3 == 0 and model.kind_name not in ("c", "rust"):
            extra += BATCHES
        return model.kind.config(model.name, extra)

    def of_role(self, *roles):
        """The models of some roles."""
        return [model for model in self.models if model.role in roles]

    def change(self, model):
        """Changes the versions of a changing model in one of several ways, and says in which."""
        newest = max(model.versions, default=0)
        hidden = not model.folder.exists()
        how = "return" if hidden else self.random.choice(["add", "add", "swap", "swap", "remove", "vanish"])
        if how == "return":
            self.restore(model)
        elif how == "vanish":
            model.history.append((time.monotonic(), None))
            self._take(model, model.folder)
        elif how == "remove" and len(model.versions) > 1:
            del model.versions[newest]
            model.note()
            self._take(model, model.folder / str(newest))
        elif how == "swap" and newest:
            model.editions += 1
            fresh = self._write_aside(model, model.editions)
            del model.versions[newest]
            model.note()
            self._take(model, model.folder / str(newest))
            model.versions[newest] = model.editions
            model.note()
            fresh.rename(model.folder / str(newest))
        else:
            how = "add"
            model.editions += 1
            fresh = self._write_aside(model, model.editions)
            model.versions[newest + 1] = model.editions
            model.note()
            fresh.rename(model.folder / str(newest + 1))
        return how

    def damage(self, model, how=None):
        """Breaks a model in one of several ways, unless it is broken, and says in which."""
        if model.damage:
            return model.damage
        model.damage = how or self.random.choice(BREAKS)
        folder = model.folder / "1"
        if model.damage == "configuration":
            (model.folder / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: many')
        else:
            kept = self._take(model, folder)
            if model.damage == "file":
                self._moves += 1
                bad = shutil.copytree(kept, self._aside / f"{self._moves}")
                for file in filter(Path.is_file, bad.rglob("*")):
                    file.write_bytes(b"broken")
                bad.rename(folder)
        return model.damage

    def restore(self, model):
        """Undoes what hides or breaks a model."""
        if model.damage == "configuration":
            self._configure(model)
        elif model.damage:
            if model.damage == "file":
                shutil.rmtree(model.folder / "1")
            model.kept.rename(model.folder / "1")
        elif not model.folder.exists():
            model.note()
            model.kept.rename(model.folder)
        model.damage = ""

    # For who looks at the folder, each move is one step.

    def _take(self, model, folder):
        self._moves += 1
        model.kept = self._aside / f"{self._moves}"
        folder.rename(model.kept)
        return model.kept

    def _write_aside(self, model, edition):
        self._moves += 1
        folder = self._aside / f"{self._moves}"
        model.kind.write(folder, model.number, edition, model.size)
        return folder
