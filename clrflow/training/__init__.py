"""The train step and the training job.

step.py            the step: starts the job where the settings say, describes what it left
job.py             one process of the job from beginning to end; __main__.py is what torchrun starts
loop.py            one schedule, epoch by epoch; schedules.py says which there are
sharding.py        TorchRec's tables and the towers' wrapper
requests.py, catalogue.py, batches.py, ragged.py    from Parquet to tensors
checkpoints.py, validation.py, vectors.py, serving_export.py    what is saved, picked and handed on
"""
