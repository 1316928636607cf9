"""Errors of calls to the driver."""

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
INVALID_DEVICE, INVALID_CONTEXT, ALREADY_MAPPED, PEER_ACCESS_UNSUPPORTED, INVALID_PTX = (
    101,
    201,
    208,
    217,
    218,
)
INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS, MISALIGNED_ADDRESS = 400, 500, 600, 700, 716
ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED, CAPTURE_UNSUPPORTED, UNKNOWN = 712, 713, 801, 900, 999

NAMES = {
    0: b"CUDA_SUCCESS",
    1: b"CUDA_ERROR_INVALID_VALUE",
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    3: b"CUDA_ERROR_NOT_INITIALIZED",
    101: b"CUDA_ERROR_INVALID_DEVICE",
    201: b"CUDA_ERROR_INVALID_CONTEXT",
    208: b"CUDA_ERROR_ALREADY_MAPPED",
    217: b"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    218: b"CUDA_ERROR_INVALID_PTX",
    400: b"CUDA_ERROR_INVALID_HANDLE",
    500: b"CUDA_ERROR_NOT_FOUND",
    600: b"CUDA_ERROR_NOT_READY",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    712: b"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    716: b"CUDA_ERROR_MISALIGNED_ADDRESS",
    713: b"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
    801: b"CUDA_ERROR_NOT_SUPPORTED",
    900: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    999: b"CUDA_ERROR_UNKNOWN",
}


class Failure(Exception):
    """A call fails with a code; the text is for whoever reads `Double.failures`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def require(condition: object, code: int, text: str) -> None:
    """Fail where a condition does not hold."""
    if not condition:
        raise Failure(code, text)
