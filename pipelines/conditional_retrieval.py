"""The DAG: from a user-event log to a published retrieval index, the same on this machine and on Kubeflow Pipelines.

    configure → validate_data → bootstrap, semantic_ids → train → evaluate → gate → export_index → publish; clean_up, however it ended

Places travel as text parameters; artifacts are small manifests and pages, since every input artifact is downloaded whole. The graph is
flat, without a branch on the gate's decision: a model that is held back is still exported, so that it can be queried and compared, and
publish, which reads the decision, publishes nothing and says so. Nor is there a branch for a run that found its schedule's lock taken: its
steps say so and end (kfp.local can't see a condition inside an exit handler). No step is cached by Kubeflow on its parameters alone, as a path
may hold new data; steps find their own finished results by content.
"""

from typing import Any

from kfp import dsl

from clrflow.launch.settings import LaunchSettings
from components.bootstrap.component import bootstrap
from components.clean_up.component import clean_up
from components.configure.component import configure
from components.evaluate.component import evaluate
from components.export_index.component import export_index
from components.gate.component import gate
from components.publish.component import publish
from components.semantic_ids.component import semantic_ids
from components.train.component import train
from components.validate_data.component import validate_data
from pipelines.kubeflow.pods import dress

NAME = "conditional-retrieval"
DISPLAY_NAMES = {
    "configure": "Check settings",
    "validate_data": "Validate data",
    "bootstrap": "Bootstrap from heuristics",
    "semantic_ids": "Semantic ids",
    "train": "Train",
    "evaluate": "Evaluate",
    "gate": "Gate",
    "export_index": "Export index",
    "publish": "Publish",
    "clean_up": "Clean up",
}


def build(launch: LaunchSettings) -> Any:
    """The pipeline, with the mounts, environment, secrets and requests of `launch` in its steps' pods."""

    @dsl.pipeline(name=NAME, display_name="Conditional retrieval")
    def conditional_retrieval(
        preset: str = "small",
        config: str = "",
        resume: str = "",
        workspace: str = "./clrflow-workspace",
        run_name: str = "",
        tables: str = "",
        window_days: int = 0,
        epochs: int = 0,
        schedule: str = "",
        dim: int = 0,
        tokenizer: str = "",
        launcher: str = "",
        overrides: str = "",
        lock: str = "",
    ) -> None:
        """Train a retrieval model that answers "what would this user like, about this topic?", and publish its index.

        Args:
            preset: Settings to start from: demo, small or production.
            config: URI of a YAML file of settings, used instead of the preset, or the settings as JSON text; "" means the preset.
            resume: An earlier run of this workspace whose settings are used again; "" means a fresh start. Finished steps are found either way.
            workspace: URI of the folder for all results (a mounted path, s3://bucket/path, ...); every step must reach it.
            run_name: Name of this run; "" means the UTC time and a short id.
            tables: URI of the folder with events, items, boards, user_interests and interests; "" means the preset's.
            window_days: Days of events that are used, e.g. 20; 0 means the preset's.
            epochs: Passes over the training requests, e.g. 3; 0 means the preset's.
            schedule: single, co_train, frozen, delayed or auto; "" means the preset's.
            dim: Width of tables and vectors, a multiple of 4, e.g. 64; 0 means the preset's.
            tokenizer: URI of a tokenizer (or published, published_or_new) whose ids stay, so that only new items get ids; "" means the preset's.
            launcher: Where training runs: local (in its step's pod), pytorchjob or trainjob; "" means as the settings say.
            overrides: Other settings as part.field=value, separated by spaces, e.g. "training.batch_size=128 gate.max_loss=0.02"; "" means none.
            lock: Name of a lock that one run of the workspace holds at a time; a second run does nothing. "" means none.
        """
        job = dsl.PIPELINE_JOB_ID_PLACEHOLDER
        last = clean_up(workspace=workspace, run_name=run_name, lock=lock, launcher=launcher, job=job)
        tasks = {"clean_up": last}
        with dsl.ExitHandler(last, name="Retrieval"):
            tasks |= steps(
                configure(
                    preset=preset, config=config, resume=resume, workspace=workspace, run_name=run_name, tables=tables,
                    window_days=window_days, epochs=epochs, schedule=schedule, dim=dim, tokenizer=tokenizer, launcher=launcher,
                    overrides=overrides, lock=lock, job=job,
                ),
                launcher,
            )  # fmt: skip
        for name, task in tasks.items():
            task.set_display_name(DISPLAY_NAMES[name])
            dress(task, name, launch)

    return conditional_retrieval


def steps(run: Any, launcher: Any) -> dict[str, Any]:
    """All that follows `run`, the task of configure: which step reads which."""
    uri = run.outputs["Output"]
    clean = validate_data(run=uri)
    requests = bootstrap(run=uri, validate_data=clean.outputs["Output"])
    codes = semantic_ids(run=uri, validate_data=clean.outputs["Output"])
    model = train(
        run=uri, validate_data=clean.outputs["Output"], bootstrap=requests.outputs["Output"], semantic_ids=codes.outputs["Output"],
        launcher=launcher,
    )  # fmt: skip
    figures = evaluate(
        run=uri, validate_data=clean.outputs["Output"], bootstrap=requests.outputs["Output"], train=model.outputs["Output"]
    )  # fmt: skip
    decision = gate(run=uri, evaluate=figures.outputs["Output"], train=model.outputs["Output"])
    bundle = export_index(
        run=uri, validate_data=clean.outputs["Output"], bootstrap=requests.outputs["Output"], train=model.outputs["Output"]
    ).after(decision)  # fmt: skip
    version = publish(
        run=uri, gate=decision.outputs["Output"], export_index=bundle.outputs["Output"], evaluate=figures.outputs["Output"]
    )  # fmt: skip
    return {
        "configure": run, "validate_data": clean, "bootstrap": requests, "semantic_ids": codes, "train": model, "evaluate": figures,
        "gate": decision, "export_index": bundle, "publish": version,
    }  # fmt: skip


conditional_retrieval = build(LaunchSettings())
