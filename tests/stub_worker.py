"""A worker whose cases do what their option ``do`` says; the rest of it is the real worker."""

import os
import signal
import sys
import time
import types

from perfkit import worker
from perfkit.method import Case


def _once(case: Case, settings: dict) -> bool:
    """True the first time a case is seen by any worker of a run."""
    path = os.path.join(settings["dir"], f"seen-{case.id}")
    if os.path.exists(path):
        return False
    open(path, "w").close()
    return True


def run_group(request, emit):
    settings = request["settings"]
    cases = [Case.from_dict(item) for item in request["cases"]]
    with open(os.path.join(settings["dir"], "requests"), "a") as file:
        file.write(" ".join(case.id for case in cases) + "\n")
    for case in cases:
        emit({"event": "phase", "case_id": case.id, "phase": "time", "done": 0, "total": 1})
        do = case.option("do", "ok")
        if do == "crash":
            print("about to fall", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif do == "exit":
            os._exit(7)
        elif do == "hang":
            time.sleep(600)
        elif do == "oom":
            raise MemoryError("needs 190 GB, 138 GB free")
        elif do == "error":
            raise ValueError("two\nlines")
        elif do == "silent":
            return
        elif do in ("poison", "fall", "stuck"):
            reason = "no luck" if do != "poison" else "CUDA error: an illegal memory access was encountered"
            reason = f"AcceleratorError: {reason}"
            emit({"event": "result", "case_id": case.id, "status": "error", "reason": reason, "row": {}})
            if do == "fall":  # as a context that is lost may, when its memory is let go of
                os.abort()
            if do == "stuck":
                time.sleep(600)
            raise AssertionError("not reached")
        elif do == "slow":
            time.sleep(float(settings.get("slow_s", 0.2)))
        elif do == "print":
            print("{this is not an event}")
            os.write(1, b"nor is this\n")
        row = {"time_us": 10.0 * case.batch / (case.window or 1), "pid": os.getpid()}
        emit(
            {
                "event": "result",
                "case_id": case.id,
                "status": "ok",
                "reason": None,
                "row": row,
                "samples": {"time_us": [row["time_us"]]},
            }
        )


if __name__ == "__main__":
    if "--dead" in sys.argv:
        sys.exit("no device here")
    if "--mute" in sys.argv:
        time.sleep(600)
    worker.run("fake", lambda: types.SimpleNamespace(run_group=run_group))
