"""The calls of one communicator, with the resources on which they run, as diagnosis sees them."""

from hpcoll.comm.requests.call_hooks import CollectiveOwner
from hpcoll.comm.team.resources import Resources


class CommunicatorCalls(CollectiveOwner):
    """The calls of one communicator.

    Args:
        resources: Resources on which the calls run; an attribute, too.

    Attributes:
        caller: What describing a call needs of the resources.
    """

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources.rank, resources.nranks)
        self.resources, self.caller = resources, resources.caller
