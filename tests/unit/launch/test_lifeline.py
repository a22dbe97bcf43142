import signal


def test_the_end_of_the_parent_drains_the_child(start):
    process = start(
        """
        import signal, sys
        from hetero_rl.launch.lifeline import follow_parent
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        follow_parent(60)
        signal.pause()
        """
    )

    process.close()

    assert process.wait(100) == 7


def test_a_child_that_does_not_drain_within_its_grace_is_killed(start):
    process = start(
        """
        import signal
        from hetero_rl.launch.lifeline import follow_parent
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        follow_parent(0.05)
        while True:
            signal.pause()
        """
    )

    process.close()

    assert process.wait(100) == -signal.SIGKILL


def test_a_child_lives_while_its_parent_holds_the_pipe(start):
    process = start(
        """
        import threading
        from hetero_rl.launch.lifeline import follow_parent
        watcher = follow_parent(60)
        watcher.join(0.2)
        print(watcher.is_alive())
        """
    )

    assert process.wait(100) == 0
    assert process.spec.log.read_text() == "True\n"
