"""The process that the user starts: Snakemake's real scheduler and our real executor, checks and monitor, over a simulated DAG."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

from snakemake.exceptions import WorkflowError
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake_executor_plugin_slurm import ExecutorSettings
from snakemake_interface_executor_plugins.settings import ExecMode, SharedFSUsage

from simulation.cluster import IN_QUEUE, Controller
from simulation.jobs import output_of
from simulation.standard_library import drive
from simulation.virtual_time import Process, sleep
from snakemake_executor_plugin_slurm_steady.executor import SteadyExecutor
from snaketrain.config.schema import Compute
from snaketrain.orchestration import executor_hooks
from snaketrain.orchestration.launching import asked
from snaketrain.orchestration.submissions import Submissions
from snaketrain.slurm.client import SlurmError
from snaketrain.slurm.jobs import Work, comment

RETRIES = 2  # as in profiles/slurm
LATENCY_WAIT = 60


class Resources(dict[str, object]):
    def __getattr__(self, name: str) -> object:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Wildcards(list[str]):
    @property
    def run(self) -> str:
        return self[0]


class SnakemakeJob:
    """A job of the DAG, with all that scheduler, executor and checks ask of one."""

    is_local, restart_times, priority, threads = False, RETRIES, 0, 4
    is_updated = False

    def __init__(self, workflow: "Workflow", number: int, rule: str, run: str, compute: Compute):
        self.workflow, self.jobid, self.name, self.run = workflow, number, rule, run
        self.rule = SimpleNamespace(name=rule)
        self.rules, self.wildcards = [rule], Wildcards([run])
        self.output, self.log, self.params = [str(output_of(rule, run))], [], [f"run={run}"]
        self.input = [] if rule == "train_model" else [str(output_of("train_model", run))]
        given = {name: value for name, value in asked(compute, saves=rule == "train_model").items() if value is not None}
        self.resources = Resources(given | {"slurm_partition": "normal"})
        self.scheduler_resources = {"_nodes": 1}
        self.attempt, self.submitted_as = 1, ""
        self.errors: list[str] = []

    def __len__(self) -> int:
        return 1

    def __hash__(self) -> int:
        return self.jobid

    def __eq__(self, other: object) -> bool:
        return self is other

    def is_group(self) -> bool:
        return False

    def log_info(self) -> None: ...

    def reset_params_and_resources(self) -> None: ...

    def log_error(self, msg: str | None = None, external_jobid: str | None = None, **_: object) -> None:
        self.workflow.takes_for_over(self, external_jobid)
        said = (msg or "").partition("\n    sbatch call:")[0].replace("\n", " ")
        self.errors.append(said)
        moment = self.workflow.world.now - 10  # jobs that were submitted later came when the limit was no longer full
        if "QOSMaxSubmitJob" in said and any(job.submitted < moment for job in self.workflow.controller.queued()):
            self.workflow.world.problem(f"{self.name} {self.run} fails at a limit, although jobs that will end are in the queue")
        self.workflow.note(f"{self.name} {self.run}: {said}")

    def register(self, external_jobid: str) -> None:
        self.submitted_as = external_jobid

    async def postprocess(self, error: bool = False, **_: object) -> None:
        """Outputs that do not appear within the latency are an error; those of a failed job are deleted."""
        path = Path(self.output[0])
        if error:
            path.unlink(missing_ok=True)
            return
        self.workflow.takes_for_over(self, self.submitted_as)
        waited = 0
        while not self.workflow.sees(path):
            if waited >= LATENCY_WAIT:
                self.log_error(f"Missing output after {LATENCY_WAIT} seconds: {path}")
                raise WorkflowError(f"Missing output: {path}")
            sleep(1)
            waited += 1


class Dag:
    queue_input_jobs: tuple[()] = ()

    def __init__(self, jobs: Iterable[SnakemakeJob]):
        self.jobs = list(jobs)
        self.done: set[SnakemakeJob] = set()
        self.running: set[SnakemakeJob] = set()
        trainings = {job.run: job for job in self.jobs if job.name == "train_model"}
        self.waits_for = {job: trainings.get(job.run) if job.name != "train_model" else None for job in self.jobs}
        self._ready_jobs = {job for job in self.jobs if not self.waits_for[job]}

    @property
    def ready_jobs(self) -> list[SnakemakeJob]:
        return sorted(self._ready_jobs, key=lambda job: job.jobid)

    def needrun_jobs(self) -> list[SnakemakeJob]:
        return [job for job in self.jobs if job not in self.done]

    def finished(self, job: SnakemakeJob) -> bool:
        return job in self.done

    def register_running(self, jobs: set[SnakemakeJob]) -> None:
        self._ready_jobs -= jobs

    async def finish(self, job: SnakemakeJob, **_: object) -> None:
        self.done.add(job)
        self._ready_jobs |= {other for other in self.jobs if self.waits_for[other] is job}

    async def retrieve_storage_inputs(self, **_: object) -> None: ...

    def needrun(self, job: SnakemakeJob) -> bool:
        return job not in self.done

    @property
    def dependencies(self) -> dict[SnakemakeJob, list[SnakemakeJob]]:
        return {job: [before] if before else [] for job, before in self.waits_for.items()}

    def get_job_group(self, job: SnakemakeJob) -> None: ...

    def reason(self, job: SnakemakeJob) -> SimpleNamespace:
        return SimpleNamespace(forced=False)

    def jobid(self, job: SnakemakeJob) -> int:
        return job.jobid

    def has_unfinished_queue_input_jobs(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.jobs)


class SimulatedExecutor(SteadyExecutor):
    """Ours; only the command that a job runs is not Snakemake's."""

    def format_job_exec(self, job: SnakemakeJob) -> str:
        return f"simulated {job.name} {job.run}"


class Scheduler(JobScheduler):
    """Snakemake's; only which of the ready jobs come first is not its choice, as that takes long for hundreds."""

    def job_selector(self, jobs: Iterable[SnakemakeJob]) -> list[SnakemakeJob]:
        selected = sorted(jobs, key=lambda job: job.jobid)[: self.resources["_nodes"]]
        self.update_available_resources(selected)
        return selected


class Workflow:
    """One `snakemake --profile profiles/slurm`."""

    def __init__(self, controller: Controller, computes: dict[str, Compute], sees: Callable[[Path], bool], at_once: int):
        self.world, self.controller, self.computes, self.sees = controller.world, controller, computes, sees
        self.process = Process(self.world, "login", {"USER": "us"})
        self.ended, self.succeeded, self.crashed = False, False, ""
        self.process.at_exit.append(lambda _: setattr(self, "ended", True))
        number = iter(range(1, 1_000_000))
        unseen = Submissions().written_unseen()  # of these Snakemake has no record: they are asked for again
        wanted = [(rule, run) for rule in ("train_model", "evaluate_model") for run in computes]
        self.dag = Dag(
            SnakemakeJob(self, next(number), rule, run, computes[run])
            for rule, run in wanted
            if not output_of(rule, run).exists() or str(output_of(rule, run)) in unseen
        )
        self.at_once = at_once
        self.scheduler: Scheduler | None = None
        self.cancelled = False

    def note(self, text: str) -> None:
        self.world.note(f"workflow {self.process.pid}: {text}")

    def takes_for_over(self, job: SnakemakeJob, number: str | None) -> None:
        slurm_job = self.controller.jobs.get(number or "")
        if slurm_job and slurm_job.state in IN_QUEUE:
            self.world.problem(f"{job.name} {job.run}: taken for over, but its job {number} is {slurm_job.state}")

    def start(self) -> None:
        self.note(f"starts with {len(self.dag)} jobs")
        self.process.start(self.main)

    def main(self) -> int:
        try:
            sleep(10)
            settings = self.settings()
            executor_hooks.register(executor_hooks.Hooks(self.check, lambda job: Path(job.output[0]).exists(), self.watched))
            executor = SimpleNamespace(common_settings=SimpleNamespace(init_seconds_before_status_checks=20), executor=SimulatedExecutor)
            self.scheduler = Scheduler(
                self.as_snakemake(settings, executor), executor, SimpleNamespace(select_jobs=None), SimpleNamespace(greediness=1.0)
            )
            self.succeeded = bool(self.scheduler.schedule())
        except Exception as error:
            if isinstance(error, WorkflowError) and isinstance(error.__context__, SlurmError):
                self.crashed = str(error)
                self.note(f"cannot start: {error}")
                return 1
            self.crashed = f"{type(error).__name__}: {error}"
            self.world.problem(f"the workflow ends with {self.crashed}")
            return 1
        self.note(f"ends {'well' if self.succeeded else 'with errors'}")
        return 0 if self.succeeded else 1

    def check(self, refused: list[str]) -> None:
        if refused:
            raise ValueError("; ".join(refused))

    def watched(self) -> tuple[dict[str, Compute], dict[str, Path]]:
        works = {job: str(Work.of(comment(job))) for job in self.dag.needrun_jobs()}
        ranges = {work: self.computes[job.run] for job, work in works.items() if self.computes[job.run].counts.varies}
        return ranges, {work: Path(job.output[0]).parent for job, work in works.items()}

    @staticmethod
    def settings() -> ExecutorSettings:
        return ExecutorSettings(
            requeue=True, status_command=None, init_seconds_before_status_checks=20, keep_successful_logs=True, logdir=Path("logs"),
            pass_command_as_script=True, no_account=True,
        )  # fmt: skip

    def as_snakemake(self, settings: ExecutorSettings, executor: SimpleNamespace) -> SimpleNamespace:
        """The parts of snakemake.workflow.Workflow that scheduler and executor touch."""

        given = {"_nodes": self.at_once, "_cores": sys.maxsize}
        workflow = SimpleNamespace(
            dag=self.dag, dryrun=False, touch=False, local_exec=True, subprocess_exec=False, remote_exec=False, is_main_process=True,
            overwrite_configfiles=[], config_settings=SimpleNamespace(config_args=None),
            output_settings=SimpleNamespace(quiet=()), linemaps={}, main_snakefile="Snakefile", workdir_init=str(Path.cwd()),
            execution_settings=SimpleNamespace(keep_going=True, queue_input_wait_time=10),
            scheduling_settings=SimpleNamespace(greediness=1.0, subsample=None, max_jobs_per_timespan=None),
            resource_settings=SimpleNamespace(cores=None), exec_mode=ExecMode.DEFAULT, executor_settings=settings, executor_plugin=executor,
            remote_execution_settings=SimpleNamespace(
                immediate_submit=False, max_status_checks_per_second=10, jobname="j.{jobid}", jobscript=None, seconds_between_status_checks=10
            ),
            storage_settings=SimpleNamespace(shared_fs_usage=set(SharedFSUsage)), async_run=drive,
            global_resources=GlobalResources(given),
        )  # fmt: skip
        workflow.scheduler = Later(lambda: self.scheduler)
        return workflow


class Later:
    """The scheduler makes the executor, which knows the scheduler."""

    def __init__(self, get: Callable[[], object]):
        self._get = get

    def __getattr__(self, name: str) -> object:
        return getattr(self._get(), name)


class GlobalResources(dict[str, int]):
    def expand_items(self, **_: object) -> list[tuple[str, int]]:
        return list(self.items())

    def __getitem__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(value=self.get(name))
