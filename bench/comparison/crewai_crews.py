"""What docs/comparison.md says about CrewAI, shown with scripted models."""

import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crewai import Agent, BaseLLM, CheckpointConfig, Crew, Process, Task
from crewai.flow import Flow, human_feedback, listen, start
from crewai.flow.async_feedback import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.persistence import SQLiteFlowPersistence
from crewai.hooks import clear_all_tool_call_hooks, register_before_tool_call_hook
from crewai.tools import tool
from facts import check


class Script(BaseLLM):
    """Says its steps one after the other: a text, or a tool's name with arguments."""

    steps: list[Any]
    requests: int = 0

    def call(self, *args: Any, **kwargs: Any) -> str:
        step = self.steps[self.requests]
        self.requests += 1
        self._track_token_usage_internal({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
        if isinstance(step, str):
            return f"Thought: I now know the final answer\nFinal Answer: {step}"
        name, arguments = step
        return f"Thought: I use a tool\nAction: {name}\nAction Input: {arguments}"


filed: list[str] = []


@tool("file_ticket")
def file_ticket(title: str) -> str:
    """File a ticket."""
    filed.append(title)
    return f"filed {title}"


def agent(role: str, *steps: Any, **options: Any) -> Agent:
    model = Script(model="script", steps=list(steps))
    return Agent(role=role, goal="Help.", backstory="You help.", llm=model, verbose=False, **options)


DELEGATE = ("Delegate work to coworker", '{"task": "File it", "context": "Flood!", "coworker": "clerk"}')


def office(**options: Any) -> tuple[Crew, Agent, Agent]:
    """A desk that delegates to a clerk."""
    filed.clear()
    clerk = agent("clerk", ("file_ticket", '{"title": "flood"}'), "Filed.", tools=[file_ticket])
    desk = agent("desk", DELEGATE, "Done.", allow_delegation=True, **options)
    task = Task(description="Handle: Flood!", expected_output="A word.", agent=desk)
    return Crew(agents=[desk, clerk], tasks=[task], process=Process.sequential, verbose=False), desk, clerk


def fact_a_coworker_has_its_own_tools() -> None:
    """An agent delegates to a coworker of its crew, which runs tools that the first agent does not have."""
    crew, desk, _ = office()
    assert crew.kickoff().raw == "Done."
    assert filed == ["flood"]
    assert not desk.tools


def fact_a_hook_reaches_nested_agents() -> None:
    """A before_tool_call hook sees the calls of all agents, delegated ones too, with arguments, and can block them."""
    seen: list[Any] = []

    def gate(context: Any) -> bool | None:
        seen.append((context.tool_name, context.agent.role, dict(context.tool_input)))
        return False if context.tool_name == "file_ticket" else None

    register_before_tool_call_hook(gate)
    try:
        crew, *_ = office()
        assert crew.kickoff().raw == "Done."
    finally:
        clear_all_tool_call_hooks()
    assert ("file_ticket", "clerk", {"title": "flood"}) in seen
    assert filed == []


def fact_a_tool_called_by_python_passes_no_hook() -> None:
    """`tool.run` from Python runs without the hooks."""
    filed.clear()
    register_before_tool_call_hook(lambda context: False)
    try:
        file_ticket.run(title="by hand")
    finally:
        clear_all_tool_call_hooks()
    assert filed == ["by hand"]


def fact_usage_is_per_crew() -> None:
    """A crew's usage is one sum over its agents; that of an agent that a tool starts by itself is not in it."""
    crew, *_ = office()
    usage = crew.kickoff().token_usage
    assert (usage.total_tokens, usage.successful_requests) == (4 * 15, 4)

    other = agent("other", "Yes.")

    @tool("ask_other")
    def ask_other(question: str) -> str:
        """Ask."""
        return str(other.kickoff(question).raw)

    lone = agent("lone", ("ask_other", '{"question": "x"}'), "Done.", tools=[ask_other])
    task = Task(description="Ask.", expected_output="A word.", agent=lone)
    usage = Crew(agents=[lone], tasks=[task]).kickoff().token_usage
    assert usage.total_tokens == 2 * 15


def fact_iterations_are_counted_per_agent() -> None:
    """`max_iter` counts the iterations of one agent's work; a coworker counts its own."""
    filed.clear()
    clerk = agent("clerk", *[("file_ticket", f'{{"title": "{n}"}}') for n in range(5)], "Filed.", tools=[file_ticket])
    desk = agent("desk", DELEGATE, "Done.", allow_delegation=True, max_iter=3)
    task = Task(description="Handle: Flood!", expected_output="A word.", agent=desk)
    assert Crew(agents=[desk, clerk], tasks=[task]).kickoff().raw == "Done."
    assert len(filed) == 5


def fact_steps_of_a_flow_are_alike() -> None:
    """In a flow, steps are methods, and whoever starts the flow does not see which of them run an agent."""
    worker = agent("classifier", "urgent")

    class Triage(Flow):
        suppress_flow_events: bool = True

        @start()
        def classify(self) -> str:
            return str(worker.kickoff("Flood!").raw)

        @listen(classify)
        def store(self, kind: str) -> str:
            return f"stored {kind}"

    assert Triage().kickoff() == "stored urgent"


def fact_a_failed_crew_goes_on_from_a_checkpoint() -> None:
    """With checkpoints on, a crew whose second task failed goes on there; the first task does not run again."""

    class Broken(Script):
        def call(self, *args: Any, **kwargs: Any) -> str:
            raise ConnectionError

    agents = [agent("first", "one"), agent("second")]
    agents[1].llm = Broken(model="script", steps=[])
    tasks = [Task(description=f"Task of {one.role}.", expected_output="A word.", agent=one) for one in agents]
    with TemporaryDirectory() as folder:
        with suppress(ConnectionError):
            Crew(agents=agents, tasks=tasks, checkpoint=CheckpointConfig(location=folder)).kickoff()
        (written,) = Path(folder).rglob("*.json")
        again = Crew.from_checkpoint(CheckpointConfig(location=folder, restore_from=written))
        for task in again.tasks:  # a checkpoint knows models by name, and these have none that it could know
            task.agent.llm = Script(model="script", steps=["two"] if task.agent.role == "second" else [])
        assert again.kickoff().raw == "two"
        assert [task.output.raw for task in again.tasks] == ["one", "two"]


def fact_a_flow_waits_for_a_person() -> None:
    """A step of a flow with `human_feedback` can pause into SQLite, and is resumed from there by its id."""

    class Later:
        def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
            raise HumanFeedbackPending(context=context)

    class Triage(Flow):
        suppress_flow_events: bool = True

        @start()
        @human_feedback(message="File it?", provider=Later())
        def propose(self) -> str:
            return "flood"

        @listen(propose)
        def store(self, answer: Any) -> str:
            return f"{answer.output}: {answer.feedback}"

    with TemporaryDirectory() as folder:
        storage = SQLiteFlowPersistence(f"{folder}/flows.db")
        pending = Triage(persistence=storage).kickoff()
        assert isinstance(pending, HumanFeedbackPending)
        flow = Triage.from_pending(pending.context.flow_id, SQLiteFlowPersistence(f"{folder}/flows.db"))
        assert flow.resume("yes") == "flood: yes"


def fact_running_code_is_deprecated() -> None:
    """`allow_code_execution` is deprecated, and its warning names services to use instead."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        agent("coder", allow_code_execution=True)
    assert any("E2B" in str(warning.message) for warning in said)


if __name__ == "__main__":
    check(globals(), "crewai")
