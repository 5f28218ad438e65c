"""What docs/comparison.md says about LangGraph, and LangChain's agents on it, shown with scripted models."""

from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any, TypedDict
from uuid import uuid4

from facts import check
from langchain.agents import create_agent
from langchain.agents.middleware import (
    CodexSandboxExecutionPolicy,
    DockerExecutionPolicy,
    HostExecutionPolicy,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ShellToolMiddleware,
)
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class Script(BaseChatModel):
    """Says its steps one after the other: a text, or a tool's name with arguments."""

    steps: list[Any]
    requests: int = 0

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResult:
        step = self.steps[self.requests]
        self.requests += 1
        calls = [] if isinstance(step, str) else [{"name": step[0], "args": step[1], "id": uuid4().hex}]
        message = AIMessage(
            step if isinstance(step, str) else "",
            tool_calls=calls,
            usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
            response_metadata={"model_name": "script-1"},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


filed: list[str] = []


@tool
def file_ticket(title: str) -> str:
    """File a ticket."""
    filed.append(title)
    return f"filed {title}"


def ask(agent: Any, text: str = "Flood!", **config: Any) -> Any:
    return agent.invoke({"messages": [("user", text)]}, config or None)


def team(*, ask_below: bool, ask_above: bool = False) -> tuple[Any, list[str]]:
    """An agent with a sub-agent behind a tool. What the tool did before it asked is counted."""
    filed.clear()
    started: list[str] = []
    gate = HumanInTheLoopMiddleware(interrupt_on={"file_ticket": True})
    clerk = create_agent(
        Script(steps=[("file_ticket", {"title": "flood"}), "Filed."]),
        [file_ticket],
        middleware=[gate] if ask_below else [],
    )

    @tool
    def ask_clerk(text: str) -> str:
        """Ask the clerk."""
        started.append(text)
        return ask(clerk, text)["messages"][-1].content

    desk = create_agent(
        Script(steps=[("ask_clerk", {"text": "Flood!"}), "Done."]),
        [ask_clerk],
        middleware=[gate] if ask_above else [],
        checkpointer=InMemorySaver(),
    )
    return desk, started


def fact_nodes_are_alike() -> None:
    """In a graph, a function and an agent are both nodes. In Python, an agent is called with `invoke` and a state."""

    class State(TypedDict):
        messages: list[Any]

    for step in (lambda state: {"messages": [AIMessage("urgent")]}, create_agent(Script(steps=["urgent"]), [])):
        graph = StateGraph(State).add_node("classify", step).add_edge(START, "classify").add_edge("classify", END)
        assert ask(graph.compile())["messages"][-1].content == "urgent"


def fact_tasks_are_alike() -> None:
    """In the functional API, a task is called the same way whether its body computes, or runs an agent."""
    agent = create_agent(Script(steps=["urgent"]), [])

    @task
    def by_rule(text: str) -> str:
        return "urgent" if "!" in text else "normal"

    @task
    def by_model(text: str) -> str:
        return ask(agent, text)["messages"][-1].content

    for classify in (by_rule, by_model):

        @entrypoint()
        def triage(text: str, classify: Any = classify) -> str:
            return classify(text).result()

        assert triage.invoke("Flood!") == "urgent"


def fact_nested_approval_resumes() -> None:
    """An approval in an agent that a tool invokes reaches the top with its arguments, and resumes there.

    The tool around that agent runs again from its start; the agent itself goes on where it was.
    """
    desk, started = team(ask_below=True)
    config = {"configurable": {"thread_id": "1"}}
    paused = desk.invoke({"messages": [("user", "Flood!")]}, config)
    (request,) = paused["__interrupt__"][0].value["action_requests"]
    assert (request["name"], request["args"]) == ("file_ticket", {"title": "flood"})
    assert filed == []
    done = desk.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    assert done["messages"][-1].content == "Done."
    assert filed == ["flood"]
    assert started == ["Flood!", "Flood!"]


def fact_approval_can_edit() -> None:
    """Whoever is asked can change the arguments, and a predicate on the call decides whether to ask."""
    filed.clear()
    gate = HumanInTheLoopMiddleware(
        interrupt_on={
            "file_ticket": {
                "allowed_decisions": ["approve", "edit", "reject"],
                "when": lambda request: request.tool_call["args"]["title"] == "flood",
            }
        }
    )
    steps = [("file_ticket", {"title": "lunch"}), ("file_ticket", {"title": "flood"}), "Done."]
    agent = create_agent(Script(steps=steps), [file_ticket], middleware=[gate], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": [("user", "go")]}, config)
    assert filed == ["lunch"]
    edit = {"type": "edit", "edited_action": {"name": "file_ticket", "args": {"title": "leak"}}}
    agent.invoke(Command(resume={"decisions": [edit]}), config)
    assert filed == ["lunch", "leak"]


def fact_a_rule_of_the_caller_stays_with_the_caller() -> None:
    """Middleware of an agent that asks about a tool does not ask when a sub-agent calls that tool."""
    desk, _ = team(ask_below=False, ask_above=True)
    done = desk.invoke({"messages": [("user", "Flood!")]}, {"configurable": {"thread_id": "1"}})
    assert "__interrupt__" not in done
    assert filed == ["flood"]


def fact_a_tool_called_by_python_is_not_asked_about() -> None:
    """`tool.invoke` from Python runs: the middleware stands around an agent's calls."""
    filed.clear()
    file_ticket.invoke({"title": "by hand"})
    assert filed == ["by hand"]


def fact_a_crash_is_resumed() -> None:
    """A graph that failed goes on, from a checkpoint on disk, at the failed node; finished nodes do not run again."""
    ran: list[str] = []

    class State(TypedDict):
        text: str

    def classify(state: State) -> State:
        ran.append("classify")
        return {"text": "urgent"}

    def store(state: State) -> State:
        ran.append("store")
        if ran.count("store") == 1:
            raise ConnectionError
        return {"text": "stored"}

    builder = StateGraph(State).add_node("classify", classify).add_node("store", store)
    builder.add_edge(START, "classify").add_edge("classify", "store").add_edge("store", END)
    config: Any = {"configurable": {"thread_id": "1"}}
    with TemporaryDirectory() as folder:
        with SqliteSaver.from_conn_string(f"{folder}/runs.db") as saver:
            with suppress(ConnectionError):
                builder.compile(checkpointer=saver).invoke({"text": "Flood!"}, config)
        with SqliteSaver.from_conn_string(f"{folder}/runs.db") as saver:  # as another process would open it
            graph = builder.compile(checkpointer=saver)
            assert graph.invoke(None, config) == {"text": "stored"}
            assert ran == ["classify", "store", "store"]
            before = next(state for state in graph.get_state_history(config) if state.next == ("classify",))
            assert graph.invoke(None, before.config) == {"text": "stored"}  # time travel
            assert ran[3:] == ["classify", "store"]


def fact_code_before_an_interrupt_repeats() -> None:
    """A node that asks with `interrupt` runs again from its start when it is resumed."""
    ran: list[str] = []

    @entrypoint(checkpointer=InMemorySaver())
    def flow(text: str) -> str:
        ran.append("before")
        return interrupt({"file": text})

    config: Any = {"configurable": {"thread_id": "1"}}
    flow.invoke("flood", config)
    assert flow.invoke(Command(resume="yes"), config) == "yes"
    assert ran == ["before", "before"]


def fact_the_recursion_limit_is_per_graph() -> None:
    """`recursion_limit` counts the steps of one graph; an agent of `create_agent` below it has a limit of its own."""

    @tool
    def look(word: str) -> str:
        """Look."""
        return word

    inner_model = Script(steps=[("look", {"word": "x"})] * 9 + ["found"])
    inner = create_agent(inner_model, [look])

    @tool
    def ask_clerk(text: str) -> str:
        """Ask."""
        return ask(inner, text)["messages"][-1].content

    outer = create_agent(Script(steps=[("ask_clerk", {"text": "x"}), "Done."]), [ask_clerk])
    assert ask(outer, recursion_limit=5)["messages"][-1].content == "Done."
    assert inner_model.requests == 10
    outer = create_agent(Script(steps=[("look", {"word": "x"})] * 9), [look])
    try:
        ask(outer, recursion_limit=5)
    except GraphRecursionError:
        return
    raise AssertionError("the limit did not hold in the agent itself")


def fact_a_call_limit_is_per_agent() -> None:
    """ModelCallLimitMiddleware counts the requests of the agent that has it, and not those of a sub-agent."""

    @tool
    def look(word: str) -> str:
        """Look."""
        return word

    inner_model = Script(steps=[("look", {"word": "x"})] * 3 + ["found"])
    inner = create_agent(inner_model, [look])

    @tool
    def ask_clerk(text: str) -> str:
        """Ask."""
        return ask(inner, text)["messages"][-1].content

    limit = ModelCallLimitMiddleware(run_limit=2, exit_behavior="error")
    outer = create_agent(Script(steps=[("ask_clerk", {"text": "x"}), "Done."]), [ask_clerk], middleware=[limit])
    assert ask(outer)["messages"][-1].content == "Done."
    assert inner_model.requests == 4


def fact_usage_is_per_model() -> None:
    """A usage callback at the top counts by model over nested agents too."""
    desk, _ = team(ask_below=False)
    usage = UsageMetadataCallbackHandler()
    ask(desk, callbacks=[usage], configurable={"thread_id": "1"})
    assert usage.usage_metadata["script-1"]["total_tokens"] == 4 * 15


def fact_runs_nest() -> None:
    """A callback at the top sees the tool calls of nested agents, with their parents."""

    class Keep(BaseCallbackHandler):
        def __init__(self) -> None:
            self.parents: dict[Any, Any] = {}
            self.tools: dict[str, Any] = {}

        def on_chain_start(
            self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any = None, **kw: Any
        ) -> None:
            self.parents[run_id] = parent_run_id

        def on_tool_start(
            self, serialized: Any, input_str: str, *, run_id: Any, parent_run_id: Any = None, **kw: Any
        ) -> None:
            self.parents[run_id] = parent_run_id
            self.tools[serialized["name"]] = run_id

    desk, _ = team(ask_below=False)
    keep = Keep()
    ask(desk, callbacks=[keep], configurable={"thread_id": "1"})
    above = keep.parents[keep.tools["file_ticket"]]
    while above and above != keep.tools["ask_clerk"]:
        above = keep.parents[above]
    assert above == keep.tools["ask_clerk"]


def fact_a_shell_has_policies() -> None:
    """LangChain's shell tool runs on the host, in Docker, or in the sandbox of the Codex program."""
    for policy in (HostExecutionPolicy, DockerExecutionPolicy, CodexSandboxExecutionPolicy):
        assert ShellToolMiddleware(execution_policy=policy())


if __name__ == "__main__":
    check(globals(), "langgraph", "langchain", "langchain-core")
