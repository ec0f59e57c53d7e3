from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bitgate.tools.config.project import Project
from bitgate.tools.errors import ConfigError, RequestError


def test_a_project_is_found_from_a_folder_below_it(write: Any) -> None:
    root = write("")
    below = root / "a" / "b"
    below.mkdir(parents=True)

    assert Project.find(below).root == root.resolve()


def test_fragments_alone_make_a_project(tmp_path: Path) -> None:
    (tmp_path / "bitgate.d").mkdir()
    (tmp_path / "bitgate.d" / "x.toml").write_text('[model.a]\npath = "a"\n', encoding="utf-8")

    assert list(Project.find(tmp_path).config.model) == ["a"]


def test_no_project_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bitgate init"):
        Project.find(tmp_path)


def test_state_lies_under_the_root(project: Project) -> None:
    assert project.ledger == project.root / ".bitgate" / "ledger.db"
    assert project.runs_dir == project.root / ".bitgate" / "runs"


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(project: Project) -> None:
    assert project.refreshed() is project

    (project.root / "bitgate.toml").write_text('[model.other]\npath = "x"\n', encoding="utf-8")

    assert list(project.refreshed().config.model) == ["other"]


def test_a_new_fragment_is_noticed(project: Project) -> None:
    (project.root / "bitgate.d" / "new.toml").write_text('[model.extra]\npath = "x"\n', encoding="utf-8")

    assert "extra" in project.refreshed().config.model


def test_a_misspelt_side_names_the_nearest(project: Project) -> None:
    with pytest.raises(RequestError, match="rolout.*Did you mean 'rollout'") as caught:
        project.side("rolout", field="side")

    assert caught.value.field == "side"


def test_a_side_takes_the_only_model(project: Project) -> None:
    assert project.side("rollout").model == "tiny"
    assert project.model(None).path == project.root / "checkpoints" / "tiny"


def test_several_models_must_be_named(write: Any) -> None:
    project = Project.load(write('[model.a]\npath = "a"\n[model.b]\npath = "b"\n'))

    with pytest.raises(RequestError, match="allowed: a, b"):
        project.model(None)


def test_tried_options_are_laid_over_and_marked(project: Project) -> None:
    tried = project.side("rollout", {"batch_invariant": True})

    assert tried.options == {"max_model_len": 512, "batch_invariant": True}
    assert not tried.configured and project.side("rollout").configured


def test_options_tried_as_they_are_configured_count_as_configured(project: Project) -> None:
    assert project.side("rollout", {"max_model_len": 512}).configured


def test_an_interpreter_stays_the_link_that_makes_it_a_virtual_environment(project: Project) -> None:
    link = project.root / "env" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.realpath("/bin/sh"))

    assert project.side("rollout").python == str(link)


def test_an_unknown_workload_lists_the_known(project: Project) -> None:
    with pytest.raises(RequestError, match="allowed: short"):
        project.workload("long")


def test_a_model_knows_how_many_updates_its_weights_have_had(write: Any) -> None:
    project = Project.load(write('[model.first]\npath = "a"\n[model.stepped]\npath = "b"\nweight_version = 1\n'))

    assert (project.model("first").weight_version, project.model("stepped").weight_version) == (0, 1)


def test_a_negative_weight_version_is_refused_by_name(write: Any) -> None:
    with pytest.raises(ConfigError, match="weight_version"):
        Project.load(write('[model.first]\npath = "a"\nweight_version = -1\n'))
