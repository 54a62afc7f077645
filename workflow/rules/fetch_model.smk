# Fetches pretrained weights and tokenizers: a local rule, since compute nodes often have no internet access.


localrules:
    fetch_model,


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
