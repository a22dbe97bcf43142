"""What every engine must do, as checks that run on the real device: `hetero-rl doctor --certify --backend NAME`.

subject.py   an engine class, a model for it, and weights A and B
checks.py    one function for each rule of `hetero_rl.worker.engine.Engine`; the contract suite in tests calls the same
models.py    models to certify with: a tiny one made on the spot, or a directory
runner.py    runs the checks in order and writes down what came of each
record.py    the outcome as JSON and as a page
"""
