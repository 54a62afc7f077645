# Fetches raw data: a local rule, since compute nodes often have no internet access.


localrules:
    fetch_data,


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
