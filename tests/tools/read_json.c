/* read_json FILE: whether a file is one whole JSON document. */
#include <config.h>

#include <stdio.h>

#include "store/json.h"

int main(int argc, char **argv)
{
    az_json_doc *doc = NULL;
    if (argc != 2 || az_json_load(&doc, argv[1]) != AZ_OK) {
        fprintf(stderr, "%s\n", az_err_message());
        return 1;
    }
    az_json_close(doc);
    return 0;
}
