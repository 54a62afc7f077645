# Fetches raw data, pretrained models and tokenizers, and other inputs: local rules, since compute nodes often have no internet access.


localrules:
    fetch_data,
    fetch_model,


rule fetch_data:
    input:
        check_results("fetch_data"),
    output:
        "results/raw/{dataset}/manifest.json",
    log:
        "logs/fetch_data/{dataset}.log",
    params:
        data=pipeline.section("fetch_data", "data"),
        files=pipeline.local_files("fetch_data"),
        code=pipeline.code("fetch_data"),
        logged=logged,
        fetch_data=python_with_network("fetch_data"),
        settings=settings_file("fetch_data"),
    shell:
        "{params.logged} {log:q} {params.fetch_data} --output {output:q} --settings {params.settings:q}"


rule fetch_model:
    input:
        check_results("fetch_model"),
    output:
        "results/models/{model}/manifest.json",
    log:
        "logs/fetch_model/{model}.log",
    params:
        source=pipeline.section("fetch_model", "source"),
        files=pipeline.local_files("fetch_model"),
        code=pipeline.code("fetch_model"),
        logged=logged,
        fetch_model=python_with_network("fetch_model"),
        settings=settings_file("fetch_model"),
    shell:
        "{params.logged} {log:q} {params.fetch_model} --output {output:q} --settings {params.settings:q}"


# files of a test set, or another input of a stage
if pipeline.inputs:

    localrules:
        fetch_input,

    rule fetch_input:
        input:
            check_results("fetch_input"),
        output:
            "results/inputs/{input_name}/manifest.json",
        log:
            "logs/fetch_input/{input_name}.log",
        params:
            source=pipeline.section("fetch_input", "source"),
            files=pipeline.local_files("fetch_input"),
            code=pipeline.code("fetch_input"),
            logged=logged,
            fetch_input=python_with_network("fetch_input"),
            settings=settings_file("fetch_input"),
        shell:
            "{params.logged} {log:q} {params.fetch_input} --output {output:q} --settings {params.settings:q}"
