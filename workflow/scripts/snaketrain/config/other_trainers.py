"""What settings of other trainers are called here, for the messages about an unknown setting and for docs/other_trainers.md."""

ADAM = "train.optimizer: {use: torch.optim.AdamW, arguments: "
APEX = "not needed: torch's own autocast, loss scaling, fused optimizers and SyncBatchNorm replaced Apex; set train.precision"
BATCHES = "train.accumulate, into which a batch of the same size is split"
BEST = "not needed: the best checkpoint is always selected, by select.metric"
EVALUATE = "train.evaluate_every or train.evaluations_per_epoch"
EVALUATION_BATCH = "evaluate.batch_size, over all processes together"
FOLDER = "the working directory of snakemake: results are in results/"
GLOBAL_BATCH = "train.batch_size, over all processes together"
KEPT = "compute.keep_checkpoints"
LOGGED = "tracking.log_every_steps"
LOADER = "compute.loader_workers"
MESH = "train.strategy: {use: mesh, arguments: "
PROFILE = "compute.profile: {first_step: 20, steps: 5}"
RESUMES = "not needed: a training that was interrupted continues by itself"
STAGES = "not needed: each stage runs if it is stale, and `snakemake TARGET` runs only what a target needs"

TRANSFORMERS = {  # TrainingArguments and SFTConfig, and the arguments of the example scripts
    "adam_beta1": f"{ADAM}{{betas: [0.9, 0.999]}}}}",
    "adam_beta2": f"{ADAM}{{betas: [0.9, 0.999]}}}}",
    "adam_epsilon": f"{ADAM}{{eps: 1e-8}}}}",
    "auto_find_batch_size": "compute.reduce_batch_on_oom",
    "bf16": "train.precision: bf16",
    "data_seed": "train.seed",
    "dataloader_num_workers": LOADER,
    "ddp_bucket_cap_mb": "train.strategy: {use: ddp, arguments: {bucket_mb: 25}}",
    "ddp_find_unused_parameters": "train.strategy: {use: ddp, arguments: {unused_parameters: true}}",
    "deepspeed": "train.strategy: fsdp, or zero1",
    "do_eval": STAGES,
    "do_predict": STAGES,
    "do_train": STAGES,
    "early_stopping_patience": "train.early_stopping: {patience: 3}",
    "eval_batch_size": EVALUATION_BATCH,
    "eval_steps": "train.evaluate_every",
    "eval_strategy": EVALUATE,
    "evaluation_strategy": EVALUATE,
    "fp16": "train.precision: fp16",
    "fsdp": "train.strategy: fsdp",
    "fsdp_config": "train.strategy: {use: fsdp, arguments: {...}}",
    "full_determinism": "train.deterministic",
    "generation_max_length": "evaluate.generate: {max_new_tokens: 128}",
    "gradient_accumulation_steps": f"{BATCHES}: train.batch_size is that of an update",
    "gradient_checkpointing": "train.recompute_activations",
    "greater_is_better": "select.mode, which most metrics decide themselves",
    "group_by_length": "train.batch_tokens, which makes batches of examples of similar length",
    "half_precision_backend": APEX,
    "label_smoothing_factor": "an argument of train.task, label_smoothing of text_classification; where tokens are predicted, a loss that has it",
    "load_best_model_at_end": BEST,
    "logging_steps": LOGGED,
    "lr_scheduler_type": "train.schedule",
    "max_grad_norm": "train.clip_norm",
    "max_seq_length": "data.max_length",
    "max_steps": "train.steps",
    "max_train_samples": "data.limit_train",
    "metric_for_best_model": "select.metric",
    "model_name_or_path": "model.source",
    "no_cuda": "compute.device: cpu",
    "num_epochs": "train.epochs",
    "num_train_epochs": "train.epochs",
    "opt_level": APEX,
    "optim": "train.optimizer",
    "output_dir": FOLDER,
    "per_device_eval_batch_size": EVALUATION_BATCH,
    "per_device_train_batch_size": GLOBAL_BATCH,
    "predict_with_generate": "evaluate.generate",
    "report_to": "tracking.uri, the MLflow that every run is recorded in",
    "resume_from_checkpoint": RESUMES,
    "run_name": "the name of the run under `runs`",
    "save_steps": "train.save_every",
    "save_strategy": "train.save_every or train.save_every_minutes",
    "save_total_limit": KEPT,
    "scheduler": "train.schedule",
    "tf32": "train.precision: tf32",
    "tokenizer_name": "data.tokenizer",
    "torch_compile": "train.compile",
    "train_batch_size": GLOBAL_BATCH,
    "use_cpu": "compute.device: cpu",
    "warmup_ratio": "train.warmup, where a value below 1 is a share of all steps",
    "warmup_steps": "train.warmup",
}

LIGHTNING = {  # the arguments of its Trainer
    "accelerator": "compute.device, cpu or cuda",
    "accumulate_grad_batches": BATCHES,
    "check_val_every_n_epoch": EVALUATE,
    "default_root_dir": FOLDER,
    "devices": "compute.processes, and compute.gpus for a cluster",
    "enable_checkpointing": "not needed: the best evaluation so far and the last step are always saved",
    "gradient_clip_val": "train.clip_norm",
    "limit_test_batches": "data.limit_test, in examples",
    "limit_train_batches": "data.limit_train, in examples",
    "limit_val_batches": "data.limit_dev, in examples",
    "log_every_n_steps": LOGGED,
    "logger": "tracking.uri, the MLflow that every run is recorded in",
    "lr": "train.learning_rate",
    "max_epochs": "train.epochs",
    "max_steps": "train.steps",
    "num_nodes": "compute.nodes",
    "num_workers": LOADER,
    "profiler": PROFILE,
    "val_check_interval": "train.evaluate_every",
}

TORCHTITAN = {  # without their sections
    "activation_checkpoint": "train.recompute_activations",
    "beta1": f"{ADAM}{{betas: [0.9, 0.95]}}}}",
    "beta2": f"{ADAM}{{betas: [0.9, 0.95]}}}}",
    "context_parallel_degree": f"{MESH}{{context: 2}}}}",
    "data_parallel_replicate_degree": f"{MESH}{{replicate: 2}}}}",
    "data_parallel_shard_degree": "train.strategy: fsdp, or a mesh with `shard`",
    "dataset_path": "data.train: {path: ...}",
    "decay_ratio": "train.schedule: {use: warmup_stable_decay, arguments: {decay: 0.1}}",
    "dump_folder": FOLDER,
    "enable_cpu_offload": "train.strategy: {use: fsdp, arguments: {cpu_offload: true}}",
    "enable_profiling": PROFILE,
    "expert_parallel_degree": f"{MESH}{{expert: 2}}}}",
    "fsdp_reshard_after_forward": "train.strategy: {use: fsdp, arguments: {reshard_after_forward: true}}",
    "global_batch_size": GLOBAL_BATCH,
    "hf_assets_path": "model.source, and data.tokenizer",
    "initial_load_path": "model.source or model.initial_weights",
    "interval": "train.save_every",
    "keep_latest_k": KEPT,
    "local_batch_size": GLOBAL_BATCH,
    "log_freq": LOGGED,
    "max_norm": "train.clip_norm",
    "mixed_precision_param": "train.precision",
    "pipeline_parallel_degree": f"{MESH}{{pipeline: 2}}}}",
    "save_traces_folder": PROFILE,
    "seq_len": "train.block_length",
    "tensor_parallel_degree": f"{MESH}{{tensor: 2}}}}",
    "warmup_steps": "train.warmup",
}

TRAINERS = {"transformers' Trainer": TRANSFORMERS, "Lightning": LIGHTNING, "torchtitan": TORCHTITAN}
OURS = {name: ours for names in TRAINERS.values() for name, ours in names.items()}
PRECISIONS = {
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "32": "fp32",
    "32-true": "fp32",
}


def from_elsewhere(name: object) -> str:
    """A sentence for a name that other trainers use; empty for others."""
    ours = OURS.get(str(name).rpartition(".")[2].lower().removeprefix("--").replace("-", "_"))
    return f" Here it is {ours}." if ours else ""
