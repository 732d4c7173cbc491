"""Where a run begins: the settings that a person typed become a checked config, or the run ends before any data is read."""

from kfp import dsl
from kfp.dsl import HTML, Artifact, Output

from components import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def configure(
    preset: str,
    config: str,
    resume: str,
    workspace: str,
    run_name: str,
    tables: str,
    window_days: int,
    epochs: int,
    schedule: str,
    dim: int,
    tokenizer: str,
    launcher: str,
    overrides: str,
    lock: str,
    job: str,
    settings: Output[Artifact],
    report: Output[HTML],
) -> str:
    """Check every setting and write the run down, so that a wrong one costs seconds instead of an hour of reading data.

    It is a step of its own, before all others, because settings must be refused before any data is read. A macro that a
    schedule left unexpanded ([[...]], {{...}}) is refused by the name of its parameter.

    Args:
        preset: Name of the settings to start from (demo, small, production).
        config: URI of a YAML file of settings instead of a preset, or the settings themselves as JSON text; "" means the preset is used.
        resume: Name of an earlier run of this workspace whose settings are used again, with nothing else changed; "" means a fresh start.
        workspace: URI of the folder that holds all results; every step's pod must reach it.
        run_name: Name of this run; "" means the UTC time and a short id.
        tables: URI of the folder with the input tables; "" means as in the preset.
        window_days: Days of events before the newest one that are used; 0 means as in the preset.
        epochs: Passes over the training requests; 0 means as in the preset.
        schedule: When embedding tables train (single, co_train, frozen, delayed, auto); "" means as in the preset.
        dim: Width of tables and vectors; 0 means as in the preset.
        tokenizer: URI of an existing tokenizer whose ids stay, so that only new items get ids (or published, published_or_new); "" means as in the preset.
        launcher: Where the training job runs (local, pytorchjob, trainjob); "" means as in the settings.
        overrides: Any other settings as part.field=value, separated by spaces or semicolons; "" means none.
        lock: Name of a lock that one run of the workspace holds at a time; while another run has it, no step does anything. "" means none.
        job: Kubeflow's id of this run, by which its exit handler finds it again.
        settings: All settings of the run, resolved.
        report: The settings as a page.

    Returns:
        URI of the run, which every other step reads.
    """
    from clrflow.configure import configure_run, page

    run = configure_run(
        preset=preset,
        config=config,
        resume=resume,
        workspace=workspace,
        run_name=run_name,
        shortcuts={
            "data.tables": tables,
            "data.window_days": window_days,
            "training.epochs": epochs,
            "training.schedule": schedule,
            "model.dim": dim,
            "semantic_ids.tokenizer": tokenizer,
            "launch.launcher": launcher,
        },
        overrides=overrides,
        lock=lock,
        job=job,
    )
    with open(settings.path, "w") as file:  # noqa: PTH123  (kfp's artifacts are paths as text)
        file.write(run.config.model_dump_json(indent=2))
    with open(report.path, "w") as file:  # noqa: PTH123
        file.write(page(run))
    return run.uri
