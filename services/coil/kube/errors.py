"""What the API server's refusals, and the network's, look like to the rest of the suite.

A caller tells apart what it can act upon: the object is missing, somebody else was faster, the request is
wrong, or the server cannot be heard at the moment. After an UnavailableError of a write nobody knows
whether the write took place; level-triggered callers look again.
"""


class ApiError(Exception):
    """The API server answered a request with anything but success.

    `status` is the HTTP status (0: there was no answer), `reason` the machine-readable word of the Status
    document ("" when there was none), `retry_after` the seconds the server asked to wait, or None.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class UnauthorizedError(ApiError):
    """401: the server does not accept our credentials, not even freshly read ones."""


class ForbiddenError(ApiError):
    """403: the role of our service account does not allow this."""


class NamespaceTerminatingError(ForbiddenError):
    """403 on create, whoever asks: the namespace is being deleted, and all that is in it goes with it."""


class NotFoundError(ApiError):
    """404, said by the API server itself: there is no such object."""


class AlreadyExistsError(ApiError):
    """409 on create: there is an object of that name."""


class ConflictError(ApiError):
    """409: the object has changed since it was read, or a precondition does not hold."""


class GoneError(ApiError):
    """410: the resource version or continue token is too old. List again."""


class InvalidError(ApiError):
    """422: validation or an admission webhook refused the document. The message names the field."""


class UnavailableError(ApiError):
    """Network trouble, 429, 5xx, or an answer nobody can read: worth trying again after a while."""
