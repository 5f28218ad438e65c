"""A project on disk with things around it that nobody may touch, a model that attacks, and a look at what happened.

Nothing here looks at what the runtime says. It looks at files, processes, sockets, calls that were made, and at
what a model was sent.
"""

import asyncio
import itertools
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_ai.messages import BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import ApprovalDecision, Runtime, WorkerEntry, WorkerRegistry, WorkerRunResult, run_worker

from ..sealing import seal

CANARY = "canary-4f1d9c"
"""What stands in every file that must not be read."""

Step = ModelResponse | Callable[[list[ModelMessage], AgentInfo], ModelResponse]
Snapshot = dict[str, tuple[Any, ...]]
_MARKS = itertools.count(1)


def say(text: str = "done") -> ModelResponse:
    """A final answer."""
    return ModelResponse(parts=[TextPart(text)])


def call(name: str, /, **arguments: Any) -> ModelResponse:
    """One call of a tool."""
    return ModelResponse(parts=[ToolCallPart(name, arguments)])


def together(*responses: ModelResponse) -> ModelResponse:
    """The calls of several responses in one."""
    return ModelResponse(parts=[part for response in responses for part in response.parts])


def raw(name: str, arguments: str) -> ModelResponse:
    """A call whose arguments are whatever text a model came up with."""
    return ModelResponse(parts=[ToolCallPart(name, arguments)])


def everything(value: Any) -> str:
    """All text and bytes in a value, however deep."""
    if isinstance(value, BinaryContent):
        return value.data.decode("latin-1") + repr(value.identifier)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return " ".join(everything(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return " ".join(map(everything, value))
    if hasattr(value, "__dataclass_fields__"):
        return " ".join(everything(getattr(value, name, None)) for name in value.__dataclass_fields__)
    return value if isinstance(value, str) else repr(value)


class Person:
    """Somebody who is asked, and counts. Answers come in order, and the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers) or [True]
        self.asked: list[tuple[str, dict[str, Any], str]] = []

    def __call__(self, tool_name: str, payload: dict[str, Any], reason: str) -> Any:
        self.asked.append((tool_name, payload, reason))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            answer = answer(tool_name, payload, reason)
        return ApprovalDecision(approved=answer) if isinstance(answer, bool) else answer

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]


@dataclass
class Attack:
    """What came of a run."""

    result: WorkerRunResult | None
    error: BaseException | None
    sent: list[str] = field(default_factory=list)
    """All that models were sent, request by request."""

    @property
    def requests(self) -> int:
        return len(self.sent)

    def told(self, text: str) -> bool:
        """Whether a model was ever sent a text."""
        return any(text in each for each in self.sent)

    @property
    def ran(self) -> list[str]:
        """The names of the calls that were made, and not refused."""
        assert self.result is not None, self.error
        return [each.name for each in self.result.trace if each.error is None]

    @property
    def answer(self) -> Any:
        assert self.result is not None, self.error
        return self.result.output


class World:
    """A project, what is outside of it, and sockets that nobody may reach."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.project = top / "project"
        self.outside = top / "outside"
        self.secret = self.outside / "secret.txt"
        for folder in (self.project / "workers", self.project / "in", self.project / "out", self.outside / "deep"):
            folder.mkdir(parents=True)
        self.secret.write_text(CANARY)
        (self.outside / "deep" / "more.txt").write_text(CANARY)
        (self.project / "in" / "plain.txt").write_text("plain\n")
        self.mark = f"70{os.getpid()}{next(_MARKS)}.25"
        """A number that no other process has among its arguments."""
        self.sent: list[str] = []
        self._open: list[socket.socket] = []

    # -- the project ---------------------------------------------------------------------------------

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file of the project."""
        file = self.project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        if file.parent.name == "generated":
            seal(file)
        return file

    def worker(self, name: str, head: str = "", *, path: str | None = None) -> Path:
        """A worker, by which the scripted model can tell that it is that one."""
        return self.write(path or f"workers/{name}.yaml", f"{head.rstrip()}\ninstructions: I am <{name}>.\n".lstrip())

    def model(self, scripts: dict[str, Sequence[Step]]) -> FunctionModel:
        """A model that takes the steps of whichever worker it speaks for, one with each request of a run."""

        def take(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.sent.append(everything(messages) + everything(info.function_tools) + str(info.instructions))
            who = str(info.instructions).partition("<")[2].partition(">")[0]
            script = scripts.get(who, ())
            taken = sum(isinstance(message, ModelResponse) for message in messages)
            step = script[taken] if taken < len(script) else say()
            made = step(messages, info) if callable(step) else step
            return ModelResponse(parts=list(made.parts), usage=made.usage)

        return FunctionModel(take, model_name="attacker")

    def attack(self, *steps: Step, worker: str = "a", callback: Any = None, data: Any = "go", **others: Any) -> Attack:
        """Run a worker whose model takes these steps. `others` are steps of other workers, by name."""
        options = {key: others.pop(key) for key in ("attachments", "message_callback") if key in others}
        self.sent = []
        model = self.model({worker: steps, **others})
        result, error = None, None
        try:
            result = run_worker(
                registry=WorkerRegistry(self.project),
                worker=worker,
                input_data=data,
                cli_model=model,
                approval_callback=callback,
                **options,
            )
        except Exception as exc:
            error = exc
        return Attack(result, error, self.sent)

    def session(self, *turns: Sequence[Step], worker: str = "a", **options: Any) -> tuple[Runtime, list[Any]]:
        """One session in which a worker is called several times, each time with other steps."""
        registry = WorkerRegistry(self.project)
        script: dict[str, Sequence[Step]] = {**options.pop("scripts", {})}
        runtime = Runtime(registry, model=self.model(script), tool_rules=registry.rule_book(), **options)
        outputs: list[Any] = []

        async def run() -> None:
            for steps in turns:
                script[worker] = steps
                try:
                    outputs.append(await runtime.call(worker, "go"))
                except Exception as exc:
                    outputs.append(exc)

        asyncio.run(run())
        return runtime, outputs

    # -- what happened -------------------------------------------------------------------------------

    def snapshot(self, *allowed: str) -> Snapshot:
        """All there is, but for what is below the allowed folders of the project."""
        free = [self.top / "calls.log", *(self.project / each for each in allowed)]
        found: Snapshot = {}
        for folder, folders, files in os.walk(self.top):
            here = Path(folder)
            folders[:] = [name for name in folders if here / name not in free and name != "__pycache__"]
            for name in (*folders, *files):
                path = here / name
                if path in free:
                    continue
                status = path.lstat()
                content: Any = None
                if stat.S_ISLNK(status.st_mode):
                    content = str(path.readlink())
                elif stat.S_ISREG(status.st_mode):
                    content = path.read_bytes()
                found[str(path.relative_to(self.top))] = (status.st_mode, status.st_ino, content)
        return found

    @contextmanager
    def untouched(self, *allowed: str) -> Iterator[None]:
        """Nothing outside of the allowed folders may be another after than before."""
        before = self.snapshot(*allowed)
        yield
        assert self.snapshot(*allowed) == before

    def processes(self, mark: str | None = None) -> list[int]:
        """Processes that have this world's mark among their arguments. They are looked at, and left alone."""
        wanted, found = (mark or self.mark).encode(), []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if wanted in file.read_bytes() and int(file.parent.name) != os.getpid():
                    found.append(int(file.parent.name))
            except OSError:
                continue
        return found

    def listen(self, kind: str, at: Path | None = None) -> "Ear":
        """A socket that should hear nothing: tcp, udp, abstract or unix."""
        if kind in ("tcp", "udp"):
            ear = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
            ear.bind(("127.0.0.1", 0))
        else:
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            ear.bind(f"\0{self.mark}" if kind == "abstract" else str(at))
        if kind != "udp":
            ear.listen(8)
        ear.setblocking(False)
        self._open.append(ear)
        return Ear(ear)

    def close(self) -> None:
        for each in self._open:
            each.close()


class Ear:
    """A socket that listens."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        name = made.getsockname()
        self.port = name[1] if isinstance(name, tuple) else 0

    def heard(self) -> bool:
        """Whether anybody came."""
        try:
            if self._socket.type == socket.SOCK_DGRAM:
                self._socket.recv(1)
            else:
                self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


COUNTED = '''
"""Tools that write down every call of them, in a file beside the project."""
import json, os
from pathlib import Path
from llm_do import entry

LOG = Path(__file__).parent.parent / "calls.log"

def _note(*what):
    with LOG.open("a") as log:
        log.write(json.dumps(what) + "\\n")

@entry
def look(place: str = "here") -> str:
    _note("look", place)
    return "nothing"

@entry
def pay(amount: int, to: str = "ann") -> str:
    _note("pay", amount, to)
    return "paid"

@entry(requires_approval=True)
def wipe(place: str) -> str:
    _note("wipe", place)
    return "wiped"

@entry(requires_approval=True)
def anything(value: object = None) -> str:
    _note("anything", repr(value))
    return "ok"
'''


def calls_made(world: World) -> list[list[Any]]:
    """What the counted tools of a project were called with."""
    log = world.top / "calls.log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def entry_of(world: World, name: str) -> WorkerEntry[Any]:
    """A worker of a project as it is built."""
    made = WorkerRegistry(world.project)[name]
    assert isinstance(made, WorkerEntry)
    return made
