# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""PING, which clients and health checks send all the time."""

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context, Session

from millstream.commands.runtime.replies import Simple
from millstream.commands.table.registry import CommandGroup
from millstream.errors import wrong_arity

command = CommandGroup("connection")

cdef object PONG = Simple(b"PONG")


@command(
    "PING [message]",
    "fast hot subscribed dataless request_policy:all_shards response_policy:all_succeeded",
)
def ping(Context ctx not None, Args args not None):
    """Returns the server's liveliness response.

    The reply is PONG, or the message as a bulk string. A RESP2 client with subscriptions gets an
    array of `pong` and the message ("" if there is none), to distinguish the reply from messages on
    channels.
    """
    cdef Session session = ctx.session
    if args.count > 2:
        raise wrong_arity("ping")
    if session.resp == 2 and session.is_subscribed():
        return [b"pong", args.take() if args.count > 1 else b""]
    return args.take() if args.count > 1 else PONG
