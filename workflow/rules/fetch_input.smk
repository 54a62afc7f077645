# Fetches the files of an evaluation set, or of another input of a stage: a local rule, since compute nodes often have no internet access.


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
