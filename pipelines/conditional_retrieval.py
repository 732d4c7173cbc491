"""The DAG: from a user-event log to a published retrieval index, the same on this machine and on Kubeflow Pipelines.

    configure → validate_data → bootstrap, semantic_ids → train → evaluate → gate → export_index → publish

Places travel as text parameters; artifacts are small manifests and pages, since every input artifact is downloaded whole. The graph is
flat, without a branch on the gate's decision: a model that is held back is still exported, so that it can be queried and compared, and
publish, which reads the decision, publishes nothing and says so. No step is cached by Kubeflow on its parameters alone, as a path may hold
new data; steps find their own finished results by content.
"""

from kfp import dsl

from components.bootstrap.component import bootstrap
from components.configure.component import configure
from components.evaluate.component import evaluate
from components.export_index.component import export_index
from components.gate.component import gate
from components.publish.component import publish
from components.semantic_ids.component import semantic_ids
from components.train.component import train
from components.validate_data.component import validate_data


@dsl.pipeline(name="conditional-retrieval", display_name="Conditional retrieval")
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
    overrides: str = "",
) -> str:
    """Train a retrieval model that answers "what would this user like, about this topic?", and publish its index.

    Args:
        preset: Settings to start from: demo, small or production.
        config: URI of a YAML file of settings, used instead of the preset; "" means the preset.
        resume: An earlier run of this workspace whose settings are used again; "" means a fresh start. Finished steps are found either way.
        workspace: URI of the folder for all results (a mounted path, s3://bucket/path, ...); every step must reach it.
        run_name: Name of this run; "" means the UTC time and a short id.
        tables: URI of the folder with events, items, boards, user_interests and interests; "" means the preset's.
        window_days: Days of events that are used, e.g. 20; 0 means the preset's.
        epochs: Passes over the training requests, e.g. 3; 0 means the preset's.
        schedule: single, co_train, frozen, delayed or auto; "" means the preset's.
        dim: Width of tables and vectors, a multiple of 4, e.g. 64; 0 means the preset's.
        overrides: Other settings as part.field=value, separated by spaces, e.g. "training.batch_size=128 gate.max_loss=0.02"; "" means none.

    Returns:
        URI of the publish step's result.
    """
    run = configure(
        preset=preset, config=config, resume=resume, workspace=workspace, run_name=run_name, tables=tables, window_days=window_days,
        epochs=epochs, schedule=schedule, dim=dim, overrides=overrides,
    )  # fmt: skip
    run.set_display_name("Check settings")
    clean = validate_data(run=run.outputs["Output"])
    clean.set_display_name("Validate data")
    requests = bootstrap(run=run.outputs["Output"], validate_data=clean.outputs["Output"])
    requests.set_display_name("Bootstrap from heuristics")
    codes = semantic_ids(run=run.outputs["Output"], validate_data=clean.outputs["Output"])
    codes.set_display_name("Semantic ids")
    model = train(
        run=run.outputs["Output"], validate_data=clean.outputs["Output"], bootstrap=requests.outputs["Output"],
        semantic_ids=codes.outputs["Output"],
    )  # fmt: skip
    model.set_display_name("Train")
    figures = evaluate(
        run=run.outputs["Output"],
        validate_data=clean.outputs["Output"],
        bootstrap=requests.outputs["Output"],
        train=model.outputs["Output"],
    )
    figures.set_display_name("Evaluate")
    decision = gate(run=run.outputs["Output"], evaluate=figures.outputs["Output"], train=model.outputs["Output"])
    decision.set_display_name("Gate")
    bundle = export_index(
        run=run.outputs["Output"],
        validate_data=clean.outputs["Output"],
        bootstrap=requests.outputs["Output"],
        train=model.outputs["Output"],
    ).after(decision)
    bundle.set_display_name("Export index")
    version = publish(
        run=run.outputs["Output"],
        gate=decision.outputs["Output"],
        export_index=bundle.outputs["Output"],
        evaluate=figures.outputs["Output"],
    )
    version.set_display_name("Publish")
    for task in (run, clean, requests, codes, model, figures, decision, bundle, version):
        task.set_caching_options(False)
        task.set_env_variable("PYTHONUNBUFFERED", "1")  # a pod's log is read while it runs
    return version.outputs["Output"]
