from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from openclaw_rl.config import Config, JudgeConfig, LossConfig, TeacherConfig, TrainingConfig


def test_the_teacher_is_the_live_policy_by_default() -> None:
    assert TrainingConfig().teacher == TeacherConfig(kind="live", hint_placement="user")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"version": 3}, "training.teacher.version is only for training.teacher.kind = frozen"),
        ({"kind": "frozen", "decay": 0.5}, "training.teacher.decay is only for training.teacher.kind = average"),
        ({"kind": "average", "path": "x"}, "training.teacher.path is only for training.teacher.kind = model"),
        ({"kind": "model"}, "training.teacher.kind = model needs training.teacher.path"),
        ({"kind": "average", "decay": 1.0}, "less than 1"),
        ({"kind": "frozen", "version": -1}, "greater than or equal to 0"),
        ({"kind": "frosen"}, "'frozen'"),
    ],
)
def test_what_a_teacher_has_no_use_for_is_an_error(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        TeacherConfig(**values)


@pytest.mark.parametrize(
    ("selection", "top_k", "compared"), [(None, 4, 4), (None, 0, 0), ("longest", 4, 0), ("overlap", 2, 2)]
)
def test_overlap_is_the_default_where_top_k_is_used(selection: Any, top_k: int, compared: int) -> None:
    loss = LossConfig(opd_top_k=top_k)
    config = Config(judge=JudgeConfig(hint_selection=selection), training=TrainingConfig(loss=loss))
    assert config.overlap_top_k == compared


def test_overlap_without_top_k_is_an_error() -> None:
    training = TrainingConfig(loss=LossConfig(opd_top_k=0))
    with pytest.raises(ValidationError, match=r"training\.loss\.opd_top_k"):
        Config(judge=JudgeConfig(hint_selection="overlap"), training=training)
