import signal


def pytest_configure(config):
    # A background job of a shell ignores SIGINT, and so would every process the tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
