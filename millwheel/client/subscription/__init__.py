"""Reads a stream from outside: with a durable cursor, or as a tail (section 4.3).

::

    async with Subscription("dips", cursor="alerts") as subscription:
        async for batch in subscription:
            for offset, timestamp, value in batch:
                ...
            await subscription.ack(batch.next_offset)

Records that are ACKed and flushed under a cursor are not delivered again to any subscriber of that cursor. If the log
moves or its worker restarts, the subscription finds it and continues where it was: the program gets every offset once.
"""

from millwheel.client.subscription.blocking import BlockingSubscription
from millwheel.client.subscription.reading import Batch
from millwheel.client.subscription.subscriber import From, Subscription
from millwheel.client.subscription.table import StreamTable

__all__ = ["Batch", "BlockingSubscription", "From", "StreamTable", "Subscription"]
