"""Protocol handlers: how a protocol brings messages into Pulsar, after Pulsar's PIP-41.

A third party's handler imports what it needs from here and is named by the entry-point group
``pulsebridge.protocol_handlers``.
"""

from bridge.ingest.awaited import AwaitedIntake, Outcome, SaturatedError
from bridge.ingest.intake import Intake
from bridge.mqtt.types import Message, PublishProperties
from bridge.protocols.handler import Acceptor, Address, ProtocolHandler, Service

__all__ = [
    "Acceptor",
    "Address",
    "AwaitedIntake",
    "Intake",
    "Message",
    "Outcome",
    "ProtocolHandler",
    "PublishProperties",
    "SaturatedError",
    "Service",
]
