"""A small MCP server on standard input and output that starts at once, and fails in the ways that tests ask for.

    python stdio_mcp.py [MODE] [FOLDER]

It uses the standard library only. MODE is `fails` (writes to standard error and exits), `waits` (makes `here-PID` in
FOLDER, and starts when `go` is there), `lists_nothing` (never answers when it is asked for its tools, and makes
`here-PID` then), `noisy` (has one tool, and writes NOISE to standard error all the time), or anything else for a
server that works.
"""

import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

count = 0


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(method: str, params: dict[str, Any]) -> Any:
    """Make a request of the client, and return its answer."""
    send({"id": "mine", "method": method, "params": params})
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "mine":
            return message.get("result") or message.get("error")


def call(name: str, arguments: dict[str, Any], token: Any) -> str:  # noqa: C901
    global count
    match name:
        case "increment":
            count += 1
            return f"{os.getpid()}:{count}"
        case "die":
            print("giving up\x1b[2J", file=sys.stderr, flush=True)
            os._exit(3)
        case "change_and_die":
            send({"method": "notifications/tools/list_changed"})
            os._exit(3)
        case "close_input":
            os.close(0)
            threading.Event().wait()
        case "read_nothing":
            threading.Event().wait()
        case "environment":
            opened = [int(path.name) for path in Path("/proc/self/fd").iterdir() if path.exists()]
            return json.dumps({"variables": sorted(os.environ), "descriptors": sorted(opened)})
        case "work":
            params = {"progressToken": token, "progress": 2, "total": 5, "message": "two\x1b of five"}
            send({"method": "notifications/progress", "params": params})
            return "worked"
        case "roots":
            return json.dumps(ask("roots/list", {}))
        case "sample":
            return json.dumps(ask("sampling/createMessage", arguments))
        case "start_another":  # which holds the output of this one
            return str(subprocess.Popen(["sleep", "600"], process_group=arguments.get("group")).pid)
        case "sample_until_refused":
            answered = 0
            while "content" in ask("sampling/createMessage", arguments):
                answered += 1
            return f"answered {answered}"
        case "sample_at_once":  # and read none of the answers
            for number in range(10_000):
                send({"id": number, "method": "sampling/createMessage", "params": arguments})
        case "say_without_end":
            while True:
                sys.stdout.write("x" * 65536)
        case "complain_without_end":
            threading.Thread(target=complain, args=(arguments.get("end", ""),), daemon=True).start()
        case "progress_flood":
            for number in range(arguments["count"]):
                params = {"progressToken": token, "progress": number, "message": "x" * 1000}
                send({"method": "notifications/progress", "params": params})
    return "done"


def complain(end: str) -> None:
    while True:
        os.write(2, b"NOISE" * 20_000 + end.encode())


TOOLS = ["increment", "die", "environment", "work", "roots", "sample", "start_another", "sample_until_refused"]
TOOLS += [
    "sample_at_once",
    "say_without_end",
    "complain_without_end",
    "progress_flood",
    "change_and_die",
    "close_input",
    "read_nothing",
]


def main() -> None:
    mode, folder = (*sys.argv[1:3], "", "")[:2]
    if mode == "fails":
        print(f"no key: {os.environ.get('KEY')}", file=sys.stderr)
        sys.exit(3)
    if mode == "noisy":
        TOOLS[1:] = []
        print("NOISE\x1b[2J" * 100, file=sys.stderr, flush=True)
        threading.Thread(target=complain, args=("\n",), daemon=True).start()
    if mode == "waits":
        (Path(folder) / f"here-{os.getpid()}").touch()
        closed = select.poll()
        closed.register(sys.stdin, select.POLLRDHUP)
        while not (Path(folder) / "go").exists():
            if closed.poll(5):  # the client has left
                return
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        match method:
            case "initialize":
                result: Any = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result["serverInfo"] = {"name": "small", "version": "1"}
            case "tools/list" if mode == "lists_nothing":
                (Path(folder) / f"here-{os.getpid()}").touch()
                continue
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
            case "tools/call":
                token = (params.get("_meta") or {}).get("progressToken")
                said = call(params["name"], params.get("arguments") or {}, token)
                result = {"content": [{"type": "text", "text": said}]}
            case _:
                send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
                continue
        send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
