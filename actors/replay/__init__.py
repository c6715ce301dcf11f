"""What a model's queue decided, written down as it happens, and decided again from that: a fault seen in production becomes a test.

A queue is a function of what it is told and when. A *turn* is one message that it has handled: what it was told, at which instant, and
what it decided then (`turns`). A *checkpoint* is all that later decisions depend on. While a flight recorder listens, a queue's `diary`
notes each turn, and a checkpoint now and then. `rerun` puts the real queue actor where a checkpoint says, on a clock that stands
where the recording says, with a device that answers what the real one did, and compares turn by turn.

Decided again is who gets a seat, waits, is refused or displaced, whose time is over, who is in a job from which position, how many rows
each step takes, when a job is asked to stop, and how each request ends. Not decided again, but taken from the recording: how
long a step took and what it drew (native code), what was kept of prompts (the prefix cache), who called and left when (sockets),
the wall clock, and whatever happened before the first checkpoint that the ring still had. Queues of delegates and of encoders are not
replayed: their engines schedule by themselves.
"""
