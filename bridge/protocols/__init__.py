"""Protocol handlers, which bring messages of a protocol into Pulsar, after Pulsar's PIP-41.

A third party's handler imports its types from here. An entry point of the group ``pulsebridge.protocol_handlers`` names
it. The module ``records`` is pure.
"""

from bridge.intake.awaited import AwaitedIntake, Outcome, SaturatedError
from bridge.intake.intake import Intake
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
