"""The comparison that a proof rests on: the meant course of a program against that of an edited one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_inplace.engine.proof import Corrective, Course, CourseRecorder, difference


def course(program: Callable[[], object], *, meant: bool = False) -> Course:
    recorder = CourseRecorder()
    lens = Corrective() if meant else None
    recorder.lens = lens
    engine = torch.autograd._engine_run_backward
    recorder.start()
    if lens is not None:
        lens.start()
    try:
        program()
    finally:
        if lens is not None:
            lens.stop()
        recorder.stop()
    assert torch.autograd._engine_run_backward is engine
    return recorder.course


def training(write: Callable[[torch.Tensor], torch.Tensor], steps: int = 3) -> Callable[[], None]:
    """Gradient descent through a value that ``write`` changes after it was saved."""

    def program() -> None:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(steps):
            h = w.exp()
            h = write(h)
            (h * h).sum().backward()
            with torch.no_grad():
                w -= 0.01 * w.grad
            w.grad = None

    return program


def hidden(h: torch.Tensor) -> torch.Tensor:
    h.data.mul_(0.5)
    return h


def refused(h: torch.Tensor) -> torch.Tensor:
    h += 1
    return h


def test_the_meant_course_has_the_gradients_of_what_was_saved() -> None:
    meant = course(training(hidden, steps=1), meant=True)
    ((loss,), (gradient,)) = meant.backwards[0]
    saved = torch.tensor([1.0, 2.0]).exp()
    torch.testing.assert_close(
        gradient, 2 * (0.5 * saved) * saved
    )  # d(h*h) of the halved, d(exp) of the saved
    torch.testing.assert_close(loss, (0.5 * saved).square().sum())
    assert len(meant.corrected) == 1


def test_a_right_edit_has_that_course() -> None:
    meant = course(training(refused), meant=True)
    assert len(meant.backwards) == 3
    assert difference(meant, course(training(lambda h: h + 1))) is None


def test_the_program_itself_has_not() -> None:
    meant = course(training(hidden), meant=True)
    assert difference(meant, course(training(hidden))) == "the gradients are not the right ones"


def test_an_edit_that_computes_something_else_has_not() -> None:
    meant = course(training(refused), meant=True)
    assert difference(meant, course(training(lambda h: h + 2))) == "another loss is computed"
    assert "2 backward passes where 3" in str(difference(meant, course(training(lambda h: h + 1, steps=2))))


def test_what_only_the_last_update_shows() -> None:
    """Both have the same losses and gradients, and the second ends with other weights."""

    def program(rate: float) -> Callable[[], None]:
        def run() -> None:
            w = torch.tensor([1.0, 2.0], requires_grad=True)
            w.exp().sum().backward()
            with torch.no_grad():
                w -= rate * w.grad

        return run

    meant = course(program(0.1), meant=True)
    assert difference(meant, course(program(0.1))) is None
    assert difference(meant, course(program(0.2))) == "the leaves end with other values"


def test_backward_passes_may_change_places_and_gradients_add_up() -> None:
    def program(order: tuple[int, int]) -> Callable[[], None]:
        def run() -> None:
            w = torch.tensor([1.0, 2.0], requires_grad=True)
            losses = w.square().sum(), w.pow(3).sum()
            for i in order:
                losses[i].backward()

        return run

    assert difference(course(program((0, 1)), meant=True), course(program((1, 0)))) is None


def test_captured_gradients_are_compared_too() -> None:
    def program(factor: float) -> Callable[[], None]:
        def run() -> None:
            w = torch.tensor([1.0, 2.0], requires_grad=True)
            loss = w.square().sum()
            torch.autograd.grad(loss, w, torch.tensor(factor))

        return run

    meant = course(program(1.0), meant=True)
    assert difference(meant, course(program(1.0))) is None
    assert difference(meant, course(program(2.0))) == "the gradients are not the right ones"


def test_nothing_to_compare_is_no_proof() -> None:
    assert "no backward pass" in str(difference(course(lambda: None, meant=True), course(lambda: None)))
