"""Interactive users: a closed population who think between an answer and their next request."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from rackline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How long a request takes on one copy of a deployment, by request rate.

    1 / latency is about a line in the rate, as for a queue or a batch whose size follows the rate.

    Args:
        alone_s: of a request that is alone [s].
        loaded_s: at the highest rate that is served [s].
        requests_per_s: that rate [requests/s].
    """

    alone_s: float
    loaded_s: float
    requests_per_s: float

    def at(self, requests_per_s: float) -> float:
        """Mean time of a request at a rate [s].

        >>> Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0).at(5.0)
        1.3333333333333333
        """
        share = requests_per_s / self.requests_per_s
        return 1.0 / ((1.0 - share) / self.alone_s + share / self.loaded_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Users of a fleet.

    Args:
        users: who are there, each waiting for an answer or thinking [count].
        think_s: mean time from an answer to the user's next request [s].

    Raises:
        InputError: nobody, or a negative time.
    """

    users: float
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.users >= 1:
            raise InputError(what="users", given=self.users, allowed="at least 1", nearest="1")
        if not self.think_s >= 0:
            raise InputError(what="think_s", given=self.think_s, allowed="0 s or more", nearest="0")

    def most(self, response: Response) -> float:
        """Users that one copy serves at its highest rate, by Little's law: r · (Z + R) [count].

        >>> Population(users=1, think_s=8.0).most(Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0))
        100.0
        """
        return response.requests_per_s * (self.think_s + response.loaded_s)

    def requests_per_s(self, response: Response, copies: int = 1) -> float:
        """Rate of all copies at which thinking and waiting users add up to all of them [requests/s].

        Equation:
            N = r · (Z + R(r)), N users of a copy, with 1 / R a line in r: the smaller root of a quadratic

        Args:
            copies: that share the users evenly [count].

        Assumes: requests arrive about at random, as many users do who think for a while.
        Sources: Little 1961, A proof for the queuing formula L = λW; Lazowska et al. 1984, interactive response time.

        >>> found = Population(users=100, think_s=8.0).requests_per_s(
        ...     Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0)
        ... )
        >>> round(found, 9)
        10.0
        """
        users, most = self.users / copies, response.requests_per_s
        alone = 1.0 / response.alone_s
        slope = max(alone - 1.0 / response.loaded_s, 0.0)
        # most Z slope x² - (users slope + most Z alone + most) x + users alone = 0, x the share of the highest rate
        square, line = most * self.think_s * slope, users * slope + most * self.think_s * alone + most
        root = sqrt(max(line * line - 4.0 * square * users * alone, 0.0))
        return copies * most * 2.0 * users * alone / (line + root)
