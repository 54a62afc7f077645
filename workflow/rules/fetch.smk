# Fetches raw data, pretrained models and tokenizers, and other inputs, such as the files of an evaluation set: local rules, since compute
# nodes often have no internet access.
FETCHED = {"fetch_data": "raw/{dataset}", "fetch_model": "models/{model}", "fetch_input": "inputs/{input_name}"}

for fetching, folder in FETCHED.items():

    rule:
        name:
            fetching
        input:
            check_results(fetching),
        output:
            f"results/{folder}/manifest.json",
        log:
            f"logs/{fetching}/{Path(folder).name}.log",
        localrule: True
        params:
            **shared(fetching),
            fetch=python_with_network(fetching),
        shell:
            "{params.logged} {log:q} {params.fetch} --output {output:q} --settings {params.settings:q}"
