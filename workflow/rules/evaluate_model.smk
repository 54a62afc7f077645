# The winner on the development and the test set, with as many processes as the training had. A task that predicts a row for
# each example leaves `<split>_predictions.csv` too, which is not declared, since not every task does.


rule evaluate_model:
    input:
        training="results/runs/{run}/training/manifest.json",
        selection="results/runs/{run}/selection/manifest.json",
        data=lambda wildcards: pipeline.data(wildcards.run),
        model=lambda wildcards: pipeline.weights(wildcards.run),
    output:
        manifest="results/runs/{run}/evaluation/manifest.json",
        results=expand("results/runs/{{run}}/evaluation/{split}_results.json", split=["dev", "test"]),
        dev_plots=report(
            "results/runs/{run}/evaluation/dev_plots.png",
            category="Runs",
            subcategory="{run}",
            labels={"set": "development"},
            caption="../report/evaluation.rst",
        ),
        test_plots=report(
            "results/runs/{run}/evaluation/test_plots.png",
            category="Runs",
            subcategory="{run}",
            labels={"set": "test"},
            caption="../report/evaluation.rst",
        ),
    log:
        "logs/evaluate_model/{run}.log",
    threads: lambda wildcards: pipeline.runs[wildcards.run].compute.threads
    resources:
        **launching.resources_of(lambda wildcards: pipeline.runs[wildcards.run].compute, saves=False),
    params:
        *pipeline.tracked("evaluate_model", pipeline.runs),
        device=lambda wildcards, input: pipeline.runs[wildcards.run].compute.device,
        command=lambda wildcards, input: pipeline.command("evaluate_model", wildcards.run),
        arguments=lambda wildcards, input: pipeline.arguments("evaluate_model", wildcards.run),
        model=lambda wildcards, input: f"--model {input.model}" if input.model else "",
    shell:
        "(PS4=; set -x; {params.command} --run-name {wildcards.run} --output {output.manifest} --training {input.training}"
        " --selection {input.selection} --data {input.data} {params.model} --device {params.device}"
        " {params.arguments}) 2>&1 | tee -i {log}"
