"""The count in Quix Streams. Each process runs this program, with a folder of its own."""

from __future__ import annotations

import json
import os
from typing import Any

from quixstreams import Application

__all__ = ["main"]


def _result(window: dict[str, int], key: str, timestamp: int, headers: Any) -> dict[str, Any]:
    """The record of a count."""
    return {"key": key, "start": window["start"], "count": window["value"]}


def main(job: dict[str, Any]) -> None:
    """Run the job until the process is stopped."""
    application = Application(
        broker_address=job["broker"],
        consumer_group=job["target"],
        auto_offset_reset="earliest",
        commit_interval=float(job["settings"]["commit_interval"]),
        processing_guarantee=job["settings"]["processing_guarantee"],
        state_dir=f"{job['place']}/state",
    )
    # The values are parsed, as in all programs. Their key is Kafka's key too, so no topic between is needed.
    frame = application.dataframe(application.topic(job["source"], key_deserializer="str", value_deserializer="json"))
    frame = frame.tumbling_window(job["window_ms"], grace_ms=job["out_of_order_ms"]).count().final()
    frame = frame.apply(_result, metadata=True)
    frame.to_topic(application.topic(job["target"], key_serializer="str", value_serializer="json"))
    application.run()


if __name__ == "__main__":
    main(json.loads(os.environ["PEER_JOB"]))
